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
    """Memory of a GPU and of the host beside it. What is enqueued is done in order; `wait` waits for all of it."""

    reclaim: Callable[[], bool | None] | None
    """Gives memory back where none is left; whether it could."""

    def allocate(self, nbytes: int, *, pinned: bool = False) -> int:
        """Zeroed memory on the device, or in the host where copies are fast. Raises TrigraphError for none left."""

    def free(self, address: int, pinned: bool) -> None:
        """Gives back what `allocate` gave."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Enqueues a copy between any two addresses."""

    def wait(self) -> None:
        """Waits for all that was enqueued. Raises TrigraphError for an error of the device or of a kernel."""

    def make_event(self) -> int | None:
        """A point of time of the stream, to be recorded."""

    def free_event(self, event: int | None) -> None:
        """Gives back what `make_event` gave."""

    def record_event(self, event: int | None) -> None:
        """The event is when all that was enqueued before is done."""

    def wait_for_event(self, event: int | None) -> None:
        """Waits until the event is past."""


class PinnedArray:
    """Host memory that copies need no staging for."""

    def __init__(self, device: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        address = device.allocate(nbytes, pinned=True)
        memory = (ctypes.c_byte * nbytes).from_address(address)
        weakref.finalize(memory, device.free, address, True)
        self.array: Array = np.frombuffer(memoryview(memory), dtype).reshape(shape)
