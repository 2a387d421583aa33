"""What was asked of the fake GPU of tests/cuda/fake_cuda, under which this process runs."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.execution.results import DraftResult

_STREAM = re.compile(r" on \d+$")
_OWN = re.compile(r"own ([0-9a-f]+) (\d+ \d+ \d+ \d+ \d+)")


@dataclass(frozen=True)
class Launch:
    """A launch of one of our kernels: its name in C++, blocks, and threads and shared bytes of each."""

    kernel: str
    blocks: int
    threads: int
    shared: int


class FakeDevice:
    """The device's account of itself."""

    def __init__(self, operators: Path) -> None:
        """`operators`: the library with our kernels."""
        self._library = ctypes.CDLL("libcudart.so.13")
        self._library.fake_cuda_take_events.restype = ctypes.c_char_p
        self._library.fake_cuda_allocated.restype = ctypes.c_size_t
        self._library.fake_cuda_allocated_on.restype = ctypes.c_size_t
        self._library.fake_cuda_pinned.restype = ctypes.c_size_t
        self._library.fake_cuda_take_most.restype = ctypes.c_size_t
        self._names = _names(operators)

    def events(self, *, streams: bool = False) -> list[str]:
        """What happened since the last call; our kernels by name: `launch own products`.

        `streams`: where it happened, too, as in `launch own products on 0`, and which events were recorded.
        """
        found = [_OWN.sub(lambda match: f"own {_plain(self._names[int(match[1], 16)])}", line) for line in self._take()]
        if streams:
            return found
        return [_STREAM.sub("", line) for line in found if not line.startswith("record ")]

    def launches(self) -> list[Launch]:
        """Our kernels' launches since the last call."""
        found = (_OWN.search(line) for line in self._take() if line.startswith("launch"))
        return [
            Launch(self._names[int(match[1], 16)], int(x) * int(y) * int(z), int(threads), int(shared))
            for match in found
            if match
            for x, y, z, threads, shared in [match[2].split()]
        ]

    def _take(self) -> list[str]:
        text: str = self._library.fake_cuda_take_events().decode()
        return text.splitlines()

    def allocated(self, number: int | None = None) -> int:
        """Bytes of device memory that are in use, on all devices or on the one of that number."""
        if number is None:
            return int(self._library.fake_cuda_allocated())
        return int(self._library.fake_cuda_allocated_on(number))

    def pinned(self) -> int:
        """Bytes of pinned memory of the host that are in use; registered memory is not among them."""
        return int(self._library.fake_cuda_pinned())

    def most_allocated(self) -> int:
        """The most bytes of all devices that were in use at a time, since the last call."""
        return int(self._library.fake_cuda_take_most())

    @contextmanager
    def full(self, left: int = 0, number: int = 0) -> Iterator[None]:
        """Others take all memory of the device of that number but `left` bytes, while the block runs."""
        gc.collect()  # engines that nobody has would give memory back in the midst of it
        with self.limited(self.allocated(number) + left, number):
            yield

    @contextmanager
    def limited(self, size: int, number: int = 0) -> Iterator[None]:
        """The device of that number has `size` bytes in all, while the block runs."""
        self._library.fake_cuda_limit(number, ctypes.c_size_t(size))
        try:
            yield
        finally:
            self._library.fake_cuda_limit(number, ctypes.c_size_t(128 << 30))

    @contextmanager
    def peers(self) -> Iterator[None]:
        """Devices reach each other's memory, while the block runs."""
        self._library.fake_cuda_peers(1)
        try:
            yield
        finally:
            self._library.fake_cuda_peers(0)

    @contextmanager
    def clocks(self, *kilohertz: int) -> Iterator[None]:
        """The memory of each device has such a clock, while the block runs."""
        for number, clock in enumerate(kilohertz):
            self._library.fake_cuda_clock(number, clock)
        try:
            yield
        finally:
            for number in range(len(kilohertz)):
                self._library.fake_cuda_clock(number, 1_000_000)

    def allocate_as_others_do(self) -> int:
        """Allocates with the thread's own capture mode, as a library does that knows nothing of us; CUDA's status."""
        return int(self._library.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64)))

    @contextmanager
    def in_captures(self, work: Callable[[], object]) -> Iterator[list[BaseException]]:
        """Has another thread do `work` in the midst of each capture; what that raised."""
        raised: list[BaseException] = []

        def act() -> None:
            try:
                work()
            except BaseException as error:
                raised.append(error)

        def called() -> None:
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()

        callback = ctypes.CFUNCTYPE(None)(called)
        self._library.fake_cuda_in_captures(callback)
        try:
            yield raised
        finally:
            self._library.fake_cuda_in_captures(None)


def events_of_verifies(gpu: FakeDevice, engine: Engine, prompt: list[int], tokens: list[int]) -> list[list[str]]:
    """What four verifies of the same tokens do, of which the first may be captured."""
    sequence, found = engine.steps.new_sequence(), []
    engine.steps.prefill([sequence], [prompt])
    for _ in range(4):
        gpu.events()
        engine.steps.verify([sequence], [tokens])
        found.append(gpu.events())
    return found


def waits_of_a_round(gpu: FakeDevice, engine: Engine, prompt: list[int], drafts: int) -> float:
    """How often the host waits in each round of a greedy text with so many drafts."""
    waits, rounds = [], []
    for tokens in (21, 9, 21):  # the first one allocates and captures
        engine.cache.clear()
        gpu.events()
        option = Options(Sampling(temperature=0), max_tokens=tokens, ignore_eos=True, draft_tokens=drafts)
        request = engine.generate(prompt, option)
        request.run()
        waits.append(count(gpu.events(), "wait"))
        rounds.append(request.stats.rounds)
    return (waits[2] - waits[1]) / (rounds[2] - rounds[1])


def unasked(result: DraftResult, row: int, position: int) -> int:
    """Where the device is to choose the drafts of a round."""
    raise AssertionError("the host is to choose a draft")


def count(events: Sequence[str], beginning: str) -> int:
    """Events that begin so."""
    return sum(event.startswith(beginning) for event in events)


def copied(events: Sequence[str], source: str, target: str) -> int:
    """Bytes that were copied from one kind of memory to another: device, pinned or pageable."""
    beginning = f"copy {source} {target} "
    return sum(int(event.removeprefix(beginning).split()[0]) for event in events if event.startswith(beginning))


def kernels(events: Sequence[str], kind: str = "launch") -> Counter[str]:
    """How often each kernel was launched, or `captured`."""
    return Counter(event.removeprefix(f"{kind} ") for event in events if event.startswith(f"{kind} "))


def _names(library: Path) -> dict[int, str]:
    """Functions by their place in a library, in C++."""
    done = subprocess.run(["nm", "-C", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {int(place, 16): name for place, _, name in (line.split(" ", 2) for line in done.stdout.splitlines())}


def _plain(symbol: str) -> str:
    """The name of a function alone."""
    plain = re.split(r"[(<]", symbol.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return plain.split("::")[-1].split(" ")[-1]
