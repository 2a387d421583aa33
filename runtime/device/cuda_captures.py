"""What a step on a GPU changes while it is captured, and what is put back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from trigraph.runtime.device.cuda_array import CudaArray
from trigraph.runtime.device.cuda_exchange import spans
from trigraph.runtime.device.cuda_library import CudaLibrary


@contextlib.contextmanager
def kept(library: CudaLibrary, memories: Sequence[CudaArray], rows: Sequence[int]) -> Iterator[None]:
    """Whatever the block does to these rows, they are afterwards as they were before.

    The copies are one piece of memory: to take and give back one for each would take long.
    """
    size = sum(memory.row_bytes for memory in memories) * len(rows)
    copies = CudaArray(library, (size,), np.dtype(np.uint8))
    moves, copy = [], copies.address
    for memory in memories:
        for _, source, count in spans([memory.row(row) for row in rows], memory.row_bytes):
            moves.append((source, copy, count * memory.row_bytes))
            copy += count * memory.row_bytes
    for source, copy, size in moves:
        library.copy(copy, source, size)
    try:
        yield
    finally:
        for source, copy, size in moves:
            library.copy(source, copy, size)


@contextlib.contextmanager
def cleared(library: CudaLibrary, memories: Sequence[CudaArray]) -> Iterator[None]:
    """These hold zeros, and after the block what they held before."""
    copies = [(memory, CudaArray(library, (2, *memory.shape), memory.dtype)) for memory in memories]
    for memory, copy in copies:
        library.copy(copy.row(0), memory.address, memory.nbytes)
        library.copy(memory.address, copy.row(1), memory.nbytes)
    try:
        yield
    finally:
        for memory, copy in copies:
            library.copy(memory.address, copy.row(0), memory.nbytes)
