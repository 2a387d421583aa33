"""The heap of the C library, where that is glibc: how much of what is freed a program keeps."""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8


def share_heap() -> None:
    """Has all threads that are yet to start use one heap: glibc gives each its own, which keeps what it once took."""
    if (library := _glibc()) is not None:
        library.mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Gives the system back what is free, such as what it took to read a vocabulary."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
