"""Read bandwidth, measured between the timed steps: it varies when others share the machine."""

import ctypes
from collections.abc import Callable

import numpy as np

from trigraph.custom_ops import library_path

PASS_BYTES = 1 << 29  # far larger than any cache, so that a pass reads memory; 10 to 20 ms on a small machine


class Bandwidth:
    """The read bandwidth of a run, pass by pass."""

    def __init__(self, read: Callable[[], float]) -> None:
        """`read` does one pass and returns its GB/s."""
        self._read = read
        self.passes: list[float] = []
        """GB/s of each pass so far."""

    def measure(self) -> float:
        """GB/s of one more pass."""
        self.passes.append(self._read())
        return self.passes[-1]


def memory_bandwidth(threads: int) -> Bandwidth:
    """The bandwidth of `threads` threads together; they are awake when a pass begins."""
    library = ctypes.CDLL(str(library_path("cpu")))
    library.trigraph_read_seconds.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.trigraph_read_seconds.restype = ctypes.c_double
    words = np.ones(PASS_BYTES // 8, np.uint64)
    return Bandwidth(
        lambda: PASS_BYTES / float(library.trigraph_read_seconds(words.ctypes.data, len(words), threads)) / 1e9
    )
