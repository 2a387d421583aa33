"""Hashes that tell weight files apart without reading them whole."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_BLOCK_BYTES = 4096
_BLOCKS = 4096
_CHUNK_BYTES = 1 << 20


def sha256_of_start(path: Path, count: int) -> str:
    """SHA-256 of the first `count` bytes of a file, or of all of it if it has fewer."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while count > 0 and (chunk := file.read(min(count, _CHUNK_BYTES))):
            digest.update(chunk)
            count -= len(chunk)
    return digest.hexdigest()


def sha256_of_sample(path: Path) -> str:
    """SHA-256 of 4096 blocks of 4 KiB spread evenly over a file, its ends included; of all of a file up to 16 MiB.

    Every run of changed bytes longer than 1/4095 of the file, and a block, meets a sampled one.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        starts = _starts(os.fstat(file.fileno()).st_size)
        if hasattr(os, "posix_fadvise"):  # the disk can then fetch them side by side
            for start in starts:
                os.posix_fadvise(file.fileno(), start, _BLOCK_BYTES, os.POSIX_FADV_WILLNEED)
        for start in starts:
            file.seek(start)
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def _starts(size: int) -> list[int]:
    """Where the sampled blocks of a file of `size` bytes start, each at a multiple of their size."""
    last = max(0, size - 1) // _BLOCK_BYTES
    count = min(_BLOCKS, last + 1)
    return [_BLOCK_BYTES * (i * last // max(1, count - 1)) for i in range(count)]
