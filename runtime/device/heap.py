"""Memory of the process: how much a program keeps of what it frees, and what the system is told of pages."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

from numpy.typing import NDArray

_M_ARENA_MAX = -8  # glibc, malloc.h
RANDOM, _DONTNEED = 1, 4  # of madvise, mman.h
POPULATE_READ, _POPULATE_WRITE = 22, 23  # since Linux 5.14


def share_heap() -> None:
    """Has all threads that are yet to start use one heap: glibc gives each its own, which keeps what it once took."""
    if (library := _glibc()) is not None:
        library.mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Gives the system back what is free, such as what it took to read a vocabulary."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def populate(array: NDArray[Any]) -> None:
    """Has the system give memory to a contiguous array now, whatever is in it; where Linux is older, at its use."""
    address = array.ctypes.data
    start = address - address % mmap.PAGESIZE
    advise(start, address + array.nbytes - start, _POPULATE_WRITE)


def release(address: int, size: int) -> None:
    """Lets go of whole pages of a mapped file; a later read finds them again."""
    start, end = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        advise(start, end - start, _DONTNEED)


def advise(address: int, size: int, advice: int) -> bool:
    """madvise for memory that starts with a page. False where the system does not do it."""
    if sys.platform != "linux":
        return False
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(madvise(address, size, advice) == 0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
