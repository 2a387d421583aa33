"""Random block drafters for small models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trigraph.models.drafter.geometries import DrafterGeometry, drafter_geometry
from trigraph.models.synth.drafter import write_drafter

KINDS = ("dflash", "dflash2", "dspark")
TARGETS = ("tiny-dense", "tiny-moe", "tiny-next")


class Drafters:
    """`drafters("dflash2", "tiny-moe", window=70)` -> file; made once a test run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, kind: str, target: str = "tiny-dense", own: tuple[str, ...] = (), **changes: Any) -> Path:
        """`own`: the optional tensors that it has. `changes`: fields of BlockDrafterConfig."""
        name = "-".join([kind, target, *own, *(f"{key}={value}" for key, value in changes.items())])
        path = self._folder / f"{name.replace(' ', '')}.gguf"
        if not path.exists():
            shape = drafter_geometry(f"{kind}-{target}")
            write_drafter(DrafterGeometry(replace(shape.config, **changes), shape.target), path, own=own)
        return path
