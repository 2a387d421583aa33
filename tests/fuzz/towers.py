"""Damaged mmproj files: each is a tower or a TrigraphError, soon, and without large allocations."""

from __future__ import annotations

import io
import random
from pathlib import Path

from rich.console import Console

from fuzz import headers
from support.models.random_gguf import write_random
from trigraph.exporter import describe
from trigraph.models.synth import write_synthetic_mmproj
from trigraph.models.vision.tower import open_tower

_KINDS = (("mmproj-tiny-dense", "F32"), ("mmproj-tiny-moe", "Q8_0"))


class Fuzzer(headers.Fuzzer):
    """As that of headers, with other files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._text = write_random(folder / "model.gguf", "qwen35", preset="nano", hidden=256)
        self._models = []
        for geometry, quant in _KINDS:
            write_synthetic_mmproj(geometry, folder / "whole.gguf", quant=quant)
            self._models.append(headers.read(folder / "whole.gguf"))

    def run(self, seed: int, case: int) -> str:
        """Write a damaged tower, and show it with its model, as the file that was named or as one that was found."""
        rng = random.Random(f"{seed}:{case}")
        for leftover in self._folder.glob("*case*"):
            leftover.unlink()
        path = self.write(rng)
        if rng.random() < 0.2:
            path = path.rename(path.with_name(f"mmproj-{path.stem}.gguf"))
            shown = describe(self._text)
        else:
            open_tower(path)
            shown = describe(self._text, mmproj=path)
        Console(file=io.StringIO()).print(shown)
        return "opened" if shown.vision is not None else "refused"
