"""The CUDA operator library's functions for hosts: memory, copies, and errors that kernels report."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from trigraph.models.errors import TrigraphError

PROVIDER = "CUDAExecutionProvider"

_idle_streams: defaultdict[int, list[int | None]] = defaultdict(list)
"""By GPU, of libraries that are gone: CUDA's streams stay for the next ones."""


class CudaLibrary:
    """The operator library's functions for hosts, for one GPU and with a stream of their own.

    Its provider is CUDA, or the CPU when the tests emulate a GPU.
    """

    def __init__(self, path: Path, number: int = 0) -> None:
        """`number`: of the GPU among those that CUDA shows."""
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise TrigraphError(f"{path}: the operator library does not load ({error}); reinstall trigraph") from error
        pointer, size, integer, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_char_p
        for name, result, arguments in (
            ("trigraph_version", text, ()),
            ("trigraph_provider", text, ()),
            ("trigraph_take_device_error", text, ()),
            ("trigraph_use_host_experts", None, (pointer,)),
            ("trigraph_use_read_rows", None, (pointer,)),
            ("trigraph_devices", ctypes.c_int, (ctypes.POINTER(text),)),
            ("trigraph_use_device", text, (ctypes.c_int,)),
            ("trigraph_device_memory", None, (ctypes.POINTER(size), ctypes.POINTER(size))),
            ("trigraph_memory_rate", ctypes.c_double, (ctypes.c_int,)),
            ("trigraph_reaches", ctypes.c_int, (ctypes.c_int,)),
            ("trigraph_make_stream", pointer, ()),
            ("trigraph_allocate", pointer, (size, ctypes.c_int, pointer)),
            ("trigraph_free", None, (pointer, ctypes.c_int)),
            ("trigraph_register", ctypes.c_int, (pointer, size)),
            ("trigraph_unregister", None, (pointer,)),
            ("trigraph_copy", text, (pointer, pointer, size, pointer)),
            ("trigraph_wait", text, (pointer,)),
            ("trigraph_make_event", pointer, ()),
            ("trigraph_free_event", None, (pointer,)),
            ("trigraph_record_event", text, (pointer, pointer)),
            ("trigraph_wait_for_event", text, (pointer,)),
            ("trigraph_hold_for_event", text, (pointer, pointer)),
            ("trigraph_seconds_between", ctypes.c_double, (pointer, pointer)),
            ("trigraph_draw_scratch", integer, (integer,)),
            ("trigraph_draw_candidates", ctypes.c_int, ()),
            ("trigraph_draw_rows", text, (pointer, integer, integer, pointer, pointer, pointer, pointer)),
            ("trigraph_walk_blocks", text, (pointer, pointer, *[integer] * 3, *[pointer] * 4)),
        ):
            function = getattr(library, name, None)
            if function is None:
                raise TrigraphError(f"{path}: the operator library has no {name}; reinstall trigraph")
            function.restype, function.argtypes = result, arguments
        self._library = library
        self.path, self.number = path, number
        self.version: str = library.trigraph_version().decode()
        self.provider: str = library.trigraph_provider().decode()
        self.waits = 0
        """How often the device was waited for: what was enqueued before the last time is done."""
        self.before_wait: Callable[[], object] | None = None
        """What the host does while the device computes."""
        self._reaches: dict[int, bool] = {}  # by number of a GPU
        self.memory_name = "cuda" if self.provider == PROVIDER else "cpu"
        self.reclaim: Callable[[], bool | None] | None = None
        """Gives memory back where none is left; whether it could."""

    def use_host_experts(self, address: int) -> None:
        """Lets nodes have routed experts computed by the CPU library, which has the functions at the address."""
        self._library.trigraph_use_host_experts(address)

    def use_read_rows(self, address: int) -> None:
        """Lets nodes have rows read in the host's memory by the CPU library, which has the function at the address."""
        self._library.trigraph_use_read_rows(address)

    def problem(self) -> str:
        """Why CUDA cannot be used here; "" when it can."""
        problem = ctypes.c_char_p()
        count = self._library.trigraph_devices(ctypes.byref(problem))
        if self.number < count:
            return ""
        if not count:
            return (problem.value or b"no device").decode()
        return f"number {self.number} was asked for, and CUDA shows {count}, counted from 0"

    def by_speed(self) -> Sequence[int]:
        """The numbers of all GPUs, those with the fastest memory first."""
        count = self._library.trigraph_devices(ctypes.byref(ctypes.c_char_p()))
        return sorted(range(count), key=self.memory_rate, reverse=True)

    def memory_rate(self, number: int) -> float:
        """Bytes a second of a GPU's memory, by its clock and bus."""
        return float(self._library.trigraph_memory_rate(number))

    def use(self) -> None:
        """Makes the GPU the one that the calling thread's next calls are about, those of ONNX Runtime too.

        What the thread allocates and frees from now on ends no capture of another thread.
        """
        self._check(self._library.trigraph_use_device(self.number))

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
        self.use()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._library.trigraph_device_memory(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    @cached_property
    def stream(self) -> int | None:
        """The stream that an engine's sessions and copies share; None for the default one.

        Another engine's work on it would become part of what is captured.
        """
        self.use()
        idle = _idle_streams[self.number]
        stream: int | None = idle.pop() if idle else self._library.trigraph_make_stream()
        weakref.finalize(self, idle.append, stream)
        return stream

    @cached_property
    def _reached(self) -> int | None:
        event = self.make_event()
        weakref.finalize(self, self._library.trigraph_free_event, event)
        return event

    def allocate(self, nbytes: int, *, pinned: bool = False) -> int:
        """Zeroed memory on the device, or in the host where copies are fast. Raises TrigraphError for none left."""
        self.use()
        while not (address := self._library.trigraph_allocate(max(nbytes, 1), pinned, self.stream)):
            if self.reclaim is not None and self.reclaim():
                continue
            free, total = self.free_memory()
            raise TrigraphError(
                f"GPU {self.number} has {free / 1e6:,.0f} of {total / 1e6:,.0f} MB free, and {nbytes / 1e6:,.0f} MB "
                "are needed; load with a smaller context or fewer sequences, or use device=cpu"
            )
        return int(address)

    def free(self, address: int, pinned: bool) -> None:
        """Gives back what `allocate` gave."""
        self._library.trigraph_free(address, pinned)

    def register(self, address: int, nbytes: int) -> bool:
        """Keeps whole pages of the host's memory where copies read them without staging; False where CUDA cannot."""
        self.use()
        return bool(self._library.trigraph_register(address, nbytes))

    def unregister(self, address: int) -> None:
        """Gives back what `register` took."""
        self._library.trigraph_unregister(address)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Enqueues a copy between any two addresses."""
        self._check(self._library.trigraph_copy(target, source, nbytes, self.stream))

    def reaches(self, number: int) -> bool:
        """Whether copies from the GPU of that number go straight to this one."""
        if number not in self._reaches:
            self.use()
            self._reaches[number] = bool(self._library.trigraph_reaches(number))
        return self._reaches[number]

    def follow(self, other: CudaLibrary) -> None:
        """What is enqueued from now on waits for all that the other one has enqueued; the host waits for nothing."""
        if other is not self:
            other.record_event(other._reached)
            self._check(self._library.trigraph_hold_for_event(other._reached, self.stream))

    def wait(self) -> None:
        """Waits for all that was enqueued. Raises TrigraphError for an error of the device or of a kernel."""
        if self.before_wait is not None:
            self.before_wait()
        self._check(self._library.trigraph_wait(self.stream))
        self.waits += 1
        if error := self._library.trigraph_take_device_error():
            raise TrigraphError(f"a step failed: {error.decode()}")

    def make_event(self) -> int | None:
        """A point of time of the stream, to be recorded."""
        self.use()
        return self._library.trigraph_make_event()  # type: ignore[no-any-return]

    def free_event(self, event: int | None) -> None:
        """Gives back what `make_event` gave."""
        self._library.trigraph_free_event(event)

    def record_event(self, event: int | None) -> None:
        """The event is when all that was enqueued before is done."""
        self._check(self._library.trigraph_record_event(event, self.stream))

    def wait_for_event(self, event: int | None) -> None:
        """Waits until the event is past."""
        self._check(self._library.trigraph_wait_for_event(event))

    def seconds_between(self, earlier: int | None, later: int | None) -> float:
        """Seconds from one event to another, both of which were waited for."""
        return float(self._library.trigraph_seconds_between(earlier, later))

    def draw_scratch(self, width: int) -> int:
        """Bytes that draws from so many logits need."""
        return int(self._library.trigraph_draw_scratch(width))

    def most_drawn_from(self, width: int) -> int:
        """The largest top-k that tokens can be drawn with; 0 for too many logits."""
        return int(self._library.trigraph_draw_candidates()) if self.draw_scratch(width) else 0

    def draw_rows(self, logits: int, rows: int, width: int, tokens: int, draws: int, scratch: int) -> None:
        """Enqueues draws from logits [rows, width], whose most likely tokens are known; all of it by address."""
        self.use()
        self._check(self._library.trigraph_draw_rows(logits, rows, width, tokens, draws, scratch, self.stream))

    def walk_blocks(
        self, candidates: int, edges: int, sizes: tuple[int, int], walks: Sequence[tuple[int, int]], draws: int
    ) -> None:
        """Enqueues walks through a block drafter's candidates [rows, C] by edges [rows, E, C], all of it by address.

        `sizes`: C and E. `walks`: the first draft's row and the number of drafts of each sequence.
        """
        self.use()
        rows, counts = ((ctypes.c_int32 * len(walks))(*values) for values in zip(*walks, strict=True))
        arguments = candidates, edges, *sizes, len(walks), rows, counts, draws, self.stream
        self._check(self._library.trigraph_walk_blocks(*arguments))

    def _check(self, problem: bytes) -> None:
        if problem:
            raise TrigraphError(f"the GPU failed: {problem.decode()}")
