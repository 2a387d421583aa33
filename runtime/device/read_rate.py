"""How fast threads together read the host's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from trigraph.custom_ops import library_path

PASS_BYTES = 1 << 29  # far larger than any cache, so that a pass reads memory; 10 to 20 ms on a small machine


def memory_reader(threads: int) -> Callable[[], float]:
    """A pass by so many threads: bytes a second. They are awake when it begins."""
    library = ctypes.CDLL(str(library_path("cpu")))
    library.trigraph_read_seconds.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.trigraph_read_seconds.restype = ctypes.c_double
    words = np.ones(PASS_BYTES // 8, np.uint64)
    return lambda: PASS_BYTES / float(library.trigraph_read_seconds(words.ctypes.data, len(words), threads))
