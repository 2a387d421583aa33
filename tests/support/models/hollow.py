"""GGUF files with a real model's header and no matrices: sparse, so that 10 GB cost neither time nor disk."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from trigraph.models.synth import write_synthetic
from trigraph.runtime import Engine, load


def write_hollow(geometry: str, path: Path, **options: Any) -> Path:
    """What `write_synthetic` writes, with holes for matrices; returns `path`."""
    write_synthetic(geometry, path, hollow=True, **options)
    return path


def load_hollow(path: Path, **options: Any) -> Engine:
    """Loads such a file on a device that computes nothing, so that its weights need not be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "memmove", lambda *_: None)
        return load(path, device="cuda", **options)
