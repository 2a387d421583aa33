"""The CUDA operator library's functions for hosts: memory, copies, and errors that kernels report."""

from __future__ import annotations

import ctypes
import time
from functools import cache
from pathlib import Path

from trigraph.models.errors import TrigraphError

PROVIDER = "CUDAExecutionProvider"
HOST_DOMAIN = "trigraph.cpu"
"""Of operators that run on the CPU in a session of the GPU."""


class CudaLibrary:
    """The operator library's functions for hosts. Its provider is CUDA, or the CPU when the tests emulate a GPU."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise TrigraphError(f"{path}: the operator library does not load ({error}); reinstall trigraph") from error
        pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        for name, result, arguments in (
            ("trigraph_version", text, ()),
            ("trigraph_provider", text, ()),
            ("trigraph_take_device_error", text, ()),
            ("trigraph_add_host_operator", None, (pointer,)),
            ("trigraph_devices", ctypes.c_int, (ctypes.POINTER(text),)),
            ("trigraph_device_memory", None, (ctypes.POINTER(size), ctypes.POINTER(size))),
            ("trigraph_make_stream", pointer, ()),
            ("trigraph_allocate", pointer, (size, ctypes.c_int, pointer)),
            ("trigraph_free", None, (pointer, ctypes.c_int)),
            ("trigraph_copy", text, (pointer, pointer, size, pointer)),
            ("trigraph_wait", text, (pointer,)),
        ):
            function = getattr(library, name, None)
            if function is None:
                raise TrigraphError(f"{path}: the operator library has no {name}; reinstall trigraph")
            function.restype, function.argtypes = result, arguments
        self._library = library
        self.path = path
        self.version: str = library.trigraph_version().decode()
        self.provider: str = library.trigraph_provider().decode()
        self.memory_name = "cuda" if self.provider == PROVIDER else "cpu"

    def add_host_operator(self, address: int) -> None:
        """Lets sessions run an operator of the CPU library, in the domain HOST_DOMAIN."""
        self._library.trigraph_add_host_operator(address)

    def problem(self) -> str:
        """Why CUDA cannot be used here; "" when it can."""
        problem = ctypes.c_char_p()
        count = self._library.trigraph_devices(ctypes.byref(problem))
        return "" if count else (problem.value or b"no device").decode()

    def copy_rate(self, nbytes: int = 1 << 30, repetitions: int = 5) -> float:
        """Bytes a second that a copy on the device reads and writes, the best of some."""
        memory = self.allocate(nbytes)
        times = []
        for _ in range(1 + repetitions):
            started = time.perf_counter()
            self.copy(memory + nbytes // 2, memory, nbytes // 2)
            self.wait()
            times.append(time.perf_counter() - started)
        self.free(memory, False)
        return nbytes / min(times[1:])

    def free_memory(self) -> tuple[int, int]:
        """Free and all bytes of the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._library.trigraph_device_memory(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    @property
    def stream(self) -> int | None:
        """The stream that sessions and copies share; None for the default one."""
        return _stream(self)

    def make_stream(self) -> int | None:
        """A new stream."""
        return self._library.trigraph_make_stream()  # type: ignore[no-any-return]

    def allocate(self, nbytes: int, *, pinned: bool = False) -> int:
        """Zeroed memory on the device, or in the host where copies are fast. Raises TrigraphError for none left."""
        address: int | None = self._library.trigraph_allocate(max(nbytes, 1), pinned, self.stream)
        if not address:
            free, total = self.free_memory()
            raise TrigraphError(
                f"the GPU has {free / 1e6:,.0f} of {total / 1e6:,.0f} MB free, and {nbytes / 1e6:,.0f} MB are needed; "
                "load with a smaller context or fewer sequences, or use --device cpu"
            )
        return address

    def free(self, address: int, pinned: bool) -> None:
        """Gives back what `allocate` gave."""
        self._library.trigraph_free(address, pinned)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Enqueues a copy between any two addresses."""
        self._check(self._library.trigraph_copy(target, source, nbytes, self.stream))

    def wait(self) -> None:
        """Waits for all that was enqueued. Raises TrigraphError for an error of the device or of a kernel."""
        self._check(self._library.trigraph_wait(self.stream))
        if error := self._library.trigraph_take_device_error():
            raise TrigraphError(f"a step failed: {error.decode()}")

    def _check(self, problem: bytes) -> None:
        if problem:
            raise TrigraphError(f"the GPU failed: {problem.decode()}")


@cache
def _stream(library: CudaLibrary) -> int | None:
    return library.make_stream()
