"""Memory of a GPU by address: what others than its own library need of it."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from trigraph.runtime.device.exchange import Array


class DeviceMemory(Protocol):
    """What the library of a GPU does with its memory and the host's beside it: see CudaLibrary."""

    number: int
    reclaim: Callable[[], bool | None] | None
    """Gives memory back where none is left; whether it could."""

    def allocate(self, nbytes: int, *, pinned: bool = False) -> int: ...
    def free(self, address: int, pinned: bool) -> None: ...
    def copy(self, target: int, source: int, nbytes: int) -> None: ...
    def wait(self) -> None: ...
    def make_event(self) -> int | None: ...
    def free_event(self, event: int | None) -> None: ...
    def record_event(self, event: int | None) -> None: ...
    def wait_for_event(self, event: int | None) -> None: ...


def pinned_array(device: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Host memory that copies need no staging for."""
    nbytes = math.prod(shape) * dtype.itemsize
    address = device.allocate(nbytes, pinned=True)
    memory = (ctypes.c_byte * nbytes).from_address(address)
    weakref.finalize(memory, device.free, address, True)
    return np.frombuffer(memoryview(memory), dtype).reshape(shape)
