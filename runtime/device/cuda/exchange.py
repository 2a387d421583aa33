"""A step's inputs and results, between the host's memory and a GPU's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trigraph.runtime.device.cuda.array import CudaArray
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.device_memory import pinned_array
from trigraph.runtime.device.exchange import NO_DEVICE_INPUTS, Array, DeviceInputs, Exchange

# Of others, rows are fetched when asked for.
_READ = ("tokens", "hidden", "probability", "embeddings", "candidates", "edges")


@dataclass(eq=False)
class _Block:
    """Pinned bytes to send inputs from, and what the library had waited for when a step took them."""

    memory: Array
    address: int
    taken: int = -1
    filled_by: CudaExchange | None = None
    """Whose step is not sent yet."""

    def views(self, arrays: Mapping[str, CudaArray], start: int) -> Mapping[str, Array]:
        """Arrays like these, which lie together on the device from address `start` on."""
        views = {}
        for name, array in arrays.items():
            piece = self.memory[array.address - start : array.address - start + array.nbytes]
            views[name] = piece.view(array.dtype).reshape(array.shape)
        return views


class Staging:
    """Pinned memory of one graph's steps, shared by all shapes: to take some for each would take milliseconds."""

    def __init__(self, library: CudaLibrary) -> None:
        self._library = library
        self._blocks: list[_Block] = []
        self._results: _Block | None = None

    def take(self, nbytes: int, exchange: CudaExchange) -> _Block:
        """A block that no copy in flight reads, for the step that is filled in next."""
        now = self._library.waits
        block = next((block for block in self._blocks if block.taken != now and block.memory.nbytes >= nbytes), None)
        if block is None:
            block = self._block(nbytes)
            self._blocks.append(block)
        block.taken, block.filled_by = now, exchange
        return block

    def results(self, nbytes: int) -> _Block:
        """The block that is read until the graph's next step."""
        if self._results is None or self._results.memory.nbytes < nbytes:
            self._results = self._block(nbytes)
        return self._results

    def _block(self, nbytes: int) -> _Block:
        memory = pinned_array(self._library, (1 << nbytes.bit_length(),), np.dtype(np.uint8))
        return _Block(memory, memory.ctypes.data)


class CudaExchange(Exchange):
    """Copies what a step takes to the device, and small results back; large ones stay until somebody reads a row."""

    def __init__(
        self, library: CudaLibrary, staging: Staging, inputs: Mapping[str, CudaArray], outputs: Mapping[str, CudaArray]
    ) -> None:
        """The arrays of `inputs`, and those of `outputs`, lie behind each other."""
        self._library, self._staging = library, staging
        self._taken, self._results = inputs, outputs
        self._start, self._size = _extent(inputs)
        self._views: dict[_Block, Mapping[str, Array]] = {}
        self._block: _Block | None = None  # of the step that is sent next, or was last
        self._makers: dict[str, CudaExchange] = {}  # of its inputs that are on another GPU, or this one
        read = {name: memory for name, memory in outputs.items() if name in _READ}
        start, size = _extent(read)
        results = staging.results(size)
        self._received = results.address, start, size
        super().__init__({}, dict(outputs) | dict(results.views(read, start)))

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Arrays to fill in that no copy in flight reads."""
        if self._block is None or self._block.filled_by is not self:
            self._block = self._staging.take(self._size, self)
        return self.sent

    @property
    def sent(self) -> Mapping[str, Array]:
        block = self._block
        assert block is not None
        if block not in self._views:
            self._views[block] = block.views(self._taken, self._start)
        return self._views[block]

    def send(self, device_inputs: DeviceInputs = NO_DEVICE_INPUTS) -> None:
        """Copies all inputs at once, and over them the rows that are on the device."""
        assert self._block is not None
        self._block.taken = self._library.waits  # the device may have been waited for since it was filled
        start, size = self._start, self._size
        if self._makers:
            start, size = _extent({name: memory for name, memory in self._taken.items() if name not in self._makers})
        self._library.copy(start, self._block.address + start - self._start, size)
        for name, sources in device_inputs.items():
            memory = self._taken[name]
            for row, source, count in spans(sources, memory.row_bytes):
                self._library.copy(memory.row(row), source, count * memory.row_bytes)
        self._block.filled_by = None
        for name, maker in self._makers.items():
            self._library.copy(self._taken[name].address, maker._results[name].address, self._taken[name].nbytes)
        for library in {maker._library for maker in self._makers.values()}:
            library.follow(self._library)  # it may write what was read
        self._makers.clear()

    def receive(self) -> None:
        self._library.copy(*self._received)
        self._library.wait()

    def result(self, name: str) -> CudaArray:
        return self._results[name]

    def fetch(self, array: Array, sources: Sequence[int]) -> None:
        for row, source, count in spans(sources, array.nbytes // len(array)):
            self._library.copy(array[row:].ctypes.data, source, array[row : row + count].nbytes)

    def hand_over(self, name: str, array: Array) -> None:
        self._library.copy(array.ctypes.data, self._results[name].address, array.nbytes)

    def takes(self, name: str, maker: Exchange) -> bool:
        if not isinstance(maker, CudaExchange) or not self._library.reaches(maker._library.number):
            return False
        self._makers[name] = maker
        return True

    def follow(self, other: Exchange) -> None:
        if isinstance(other, CudaExchange):
            self._library.follow(other._library)

    def wait(self) -> None:
        self._library.wait()


def spans(sources: Sequence[int], row_bytes: int) -> Iterator[tuple[int, int, int]]:
    """First row, its source, and how many rows lie behind each other there; without those of source 0."""
    row = 0
    while row < len(sources):
        count = 1
        while row + count < len(sources) and sources[row + count] == sources[row] + count * row_bytes:
            count += 1
        if sources[row]:
            yield row, sources[row], count
        row += count


def _extent(arrays: Mapping[str, CudaArray]) -> tuple[int, int]:
    """Where arrays begin that lie behind each other, and their bytes."""
    start = min((array.address for array in arrays.values()), default=0)
    return start, max((array.address + array.nbytes for array in arrays.values()), default=0) - start
