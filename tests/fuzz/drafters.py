"""Damaged block drafters: each is one or a TrigraphError, soon, and without large allocations."""

from __future__ import annotations

import io
import random
import shutil
from pathlib import Path

from rich.console import Console

from fuzz import headers
from trigraph.exporter import ExportOptions, describe, export
from trigraph.models.synth import write_synthetic, write_synthetic_drafter

_FILES = (("dflash-tiny-dense", "F32"), ("dflash2-tiny-dense", "BF16"), ("dspark-tiny-dense", "Q8_0"))
_EXPORTED = 20  # one of so many that open is exported too


class Fuzzer(headers.Fuzzer):
    """As that of headers, with other files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._text, self._models = folder / "model.gguf", []
        write_synthetic("tiny-dense", self._text, quant="Q8_0")
        for geometry, quant in _FILES:
            write_synthetic_drafter(geometry, folder / "whole.gguf", quant=quant)
            self._models.append(headers.read(folder / "whole.gguf"))

    def run(self, seed: int, case: int) -> str:
        """Write a damaged drafter, and show it with its model; export some."""
        rng = random.Random(f"{seed}:{case}")
        for leftover in self._folder.glob("case*"):
            leftover.unlink()
        path = self.write(rng)
        Console(file=io.StringIO()).print(describe(self._text, draft_model=path))
        if rng.randrange(_EXPORTED):
            return "opened"
        shutil.rmtree(self._folder / "package", ignore_errors=True)
        export(self._text, self._folder / "package", ExportOptions(draft_model=path))
        return "exported"
