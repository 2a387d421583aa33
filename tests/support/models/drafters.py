"""Random block drafters for small models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trigraph.models.drafter.geometries import DrafterGeometry, drafter_geometry
from trigraph.models.model import open_model
from trigraph.models.synth.drafter import write_drafter

KINDS = ("dflash", "dflash2", "dspark")
TARGETS = ("tiny-dense", "tiny-moe", "tiny-next")


class Drafters:
    """`drafters("dflash2", "tiny-moe", window=70)` -> file; made once a test run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, kind: str, target: str = "tiny-dense", own: tuple[str, ...] = (), quant: str = "F32", **changes: Any
    ) -> Path:
        """`own`: the optional tensors that it has. `changes`: fields of BlockDrafterConfig."""
        name = "-".join([kind, target, quant, *own, *(f"{key}={value}" for key, value in changes.items())])
        path = self._folder / f"{name.replace(' ', '')}.gguf"
        if not path.exists():
            shape = drafter_geometry(f"{kind}-{target}")
            write_drafter(DrafterGeometry(replace(shape.config, **changes), shape.target), path, own=own, quant=quant)
        return path


def drafter_of(model: Path, path: Path, kind: str) -> Path:
    """A drafter of any model's file, which reads what enters its second layer and what leaves its last; made once.

    A row of "dflash2-sliding" sees 40 positions, of "dflash-sliding" in the first layer alone.
    """
    kind, _, slides = kind.partition("-")
    if not path.exists():
        config, shape = open_model(model).config, drafter_geometry(f"{kind}-tiny-dense")
        own = replace(shape.config, hidden=config.hidden, taps=(1, config.trunk_layers), mask=config.vocab - 1)
        if slides:
            own = replace(own, window=40, sliding=(True, kind != "dflash"), causal=(kind == "dspark",) * 2)
        write_drafter(DrafterGeometry(own, replace(shape.target, hidden=config.hidden, vocab=config.vocab)), path)
    return path
