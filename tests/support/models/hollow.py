"""GGUF files with a real model's header and no matrices: sparse, so that 10 GB cost neither time nor disk."""

from pathlib import Path
from typing import Any

from trigraph.models.synth import write_synthetic


def write_hollow(geometry: str, path: Path, **options: Any) -> Path:
    """What `write_synthetic` writes, with holes for matrices; returns `path`."""
    write_synthetic(geometry, path, hollow=True, **options)
    return path
