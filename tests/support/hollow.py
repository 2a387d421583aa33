"""GGUF files with a real model's header and no data: sparse, so that 10 GB cost neither time nor disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

from trigraph.models.synth import write, write_synthetic
from trigraph.models.synth.layout import SynthTensor

ALIGNMENT = 32


def write_hollow(
    geometry: str, path: Path, *, layers: int | None = None, vocab: int | None = None, quant: str = "Q4_K_M"
) -> Path:
    """What `write_synthetic` writes, with zeros for all tensor data; returns `path`."""
    with patch.object(write, "_write_tensors", _skip_tensors):
        write_synthetic(geometry, path, layers=layers, vocab=vocab, quant=quant)
    return path


def _skip_tensors(
    file: BinaryIO, wanted: Sequence[SynthTensor], seed: int, progress: Callable[[str, int, int], None] | None
) -> None:
    size = -(-file.tell() // ALIGNMENT) * ALIGNMENT
    file.truncate(size + sum(-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in wanted))
