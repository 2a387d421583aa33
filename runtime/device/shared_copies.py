"""Copies of weights that the processes of a machine share: files in memory, which go with the last of them."""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from trigraph.runtime.device.exchange import Array
from trigraph.runtime.device.mapped_weights import MappedFile, MappedWeights

_REST = 0.02  # seconds until a process tries again to get a lock that another one has
_ATTEMPTS = 250  # at the lock of a weight file, which other programs may hold for as long as they like


class SharedCopies:
    """A place for a copy of each weight of mapped files, the same for all processes of a user that map these files.

    They find each other's under /proc. Each copy is made by one process; what a process that dies leaves undone falls
    to the others.
    """

    def __init__(self, weights: MappedWeights, layout: str) -> None:
        """`layout`: names what the copies look like. Raises OSError when the system gives no such file."""
        self._files = [_SharedFile(file, layout) for file in weights.files if file.size]

    @property
    def begun(self) -> bool:
        """Whether another process was here before."""
        return any(file.found for file in self._files)

    def copy(
        self, address: int, shape: tuple[int, ...], fill: Callable[[Array], None], pause: Callable[[float], None]
    ) -> Array:
        """The copy of the weight of bytes at `address`, made by `fill` unless it was before.

        While another process makes it, calls `pause` again and again, which may raise.
        """
        file = next(file for file in self._files if file.mapped.address <= address < file.mapped.end)
        copy, done = file.place(address, shape)
        while not done[0]:
            if not file.try_lock():
                time.sleep(_REST)
                pause(_REST)
                continue
            try:
                if not done[0]:
                    fill(copy)
                    done[0] = 1
            finally:
                file.unlock()
        return copy


def shared_copies(weights: MappedWeights, layout: str) -> SharedCopies | None:
    """Those of these files; None where the system has no files in memory that other processes find, as Linux has."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        return SharedCopies(weights, layout)
    except OSError:  # such as a file system without locks, or a file that another program has locked
        return None


class _SharedFile:
    """Copies beside one mapped file, twice as long: behind each copy is room for the mark that it is complete."""

    def __init__(self, mapped: MappedFile, layout: str) -> None:
        self.mapped = mapped
        status, size = os.fstat(mapped.descriptor), 2 * mapped.size
        name = f"trigraph-{status.st_dev:x}-{status.st_ino:x}-{status.st_mtime_ns:x}-{size:x}-{layout}"
        with _locked(mapped.descriptor):
            found = _find(name, size)
            self.found = found is not None
            if found is None:
                found = os.memfd_create(name)
                os.ftruncate(found, size)
        self._descriptor = found
        weakref.finalize(self, os.close, found)
        self._memory = mmap.mmap(found, size)

    def place(self, address: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Where the copy is, and its mark: not 0 once it is complete."""
        nbytes = int(np.prod(shape, dtype=np.int64))
        memory = np.frombuffer(self._memory, np.uint8, nbytes + 1, 2 * (address - self.mapped.address))
        return memory[:-1].reshape(shape), memory[-1:]

    def try_lock(self) -> bool:
        """Takes the right to make copies, unless another process has it. The system takes it from one that dies."""
        return _try_lock(self._descriptor)

    def unlock(self) -> None:
        """Gives the right back."""
        _unlock(self._descriptor)


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Only one process at a time looks for a file in memory and makes it. Raises OSError where none may."""
    for _ in range(_ATTEMPTS):
        if _try_lock(descriptor):
            break
        time.sleep(_REST)
    else:
        raise BlockingIOError
    try:
        yield
    finally:
        _unlock(descriptor)


def _try_lock(descriptor: int) -> bool:
    from fcntl import LOCK_EX, LOCK_NB, flock

    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    from fcntl import LOCK_UN, flock

    flock(descriptor, LOCK_UN)


def _find(name: str, size: int) -> int | None:
    """A descriptor of the file of that name that another process of this user has open."""
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is another user's
            for link in os.scandir(f"/proc/{process}/fd"):
                if os.readlink(link.path) != f"/memfd:{name} (deleted)":
                    continue
                descriptor = os.open(link.path, os.O_RDWR | os.O_CLOEXEC)
                status = os.fstat(descriptor)
                if (status.st_uid, status.st_size) == (os.geteuid(), size):
                    return descriptor
                os.close(descriptor)
    return None
