"""A step's inputs and results, between the host's memory and a GPU's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trigraph.runtime.device.cuda_array import CudaArray, PinnedArray
from trigraph.runtime.device.cuda_library import CudaLibrary
from trigraph.runtime.device.device import NOTHING, Array, Exchange, Fed

_ON_DEVICE = ("logits",)  # results that a round seldom reads: rows of them are fetched when asked for


@dataclass
class _Stage:
    """Pinned arrays to send inputs from, and what the library had waited for when they were sent last."""

    arrays: Mapping[str, Array]
    sent: int = -1


class CudaExchange(Exchange):
    """Copies what a step takes to the device, and small results back; large ones stay until somebody reads a row."""

    def __init__(self, library: CudaLibrary, inputs: Mapping[str, CudaArray], outputs: Mapping[str, CudaArray]) -> None:
        self._library = library
        self._taken, self._results = inputs, outputs
        self._stages = [self._stage()]
        self._received = {
            name: (memory, PinnedArray(library, memory.shape, memory.dtype).array)
            for name, memory in outputs.items()
            if name not in _ON_DEVICE
        }
        received = {name: array for name, (_, array) in self._received.items()}
        super().__init__(self._stages[0].arrays, dict(outputs) | received)

    @property
    def inputs(self) -> Mapping[str, Array]:
        """See Exchange: arrays that no copy in flight reads."""
        now = self._library.waits
        free = next((number for number, stage in enumerate(self._stages) if stage.sent != now), None)
        if free is None:
            self._stages.insert(0, self._stage())
        else:
            self._stages.insert(0, self._stages.pop(free))
        return self._stages[0].arrays

    @property
    def sent(self) -> Mapping[str, Array]:
        """See Exchange."""
        return self._stages[0].arrays

    def send(self, fed: Fed = NOTHING) -> None:
        """See Exchange."""
        stage = self._stages[0]
        stage.sent = self._library.waits
        for name, memory in self._taken.items():
            sources = fed.get(name, ())
            if not sources or not all(sources):
                self._library.copy(memory.address, stage.arrays[name].ctypes.data, memory.nbytes)
            for row, source, count in _spans(sources, memory.row_bytes):
                self._library.copy(memory.row(row), source, count * memory.row_bytes)

    def receive(self) -> None:
        """See Exchange."""
        for memory, array in self._received.values():
            self._library.copy(array.ctypes.data, memory.address, array.nbytes)
        self._library.wait()

    def result(self, name: str) -> CudaArray:
        """See Exchange."""
        return self._results[name]

    def _stage(self) -> _Stage:
        return _Stage({name: PinnedArray(self._library, m.shape, m.dtype).array for name, m in self._taken.items()})


def _spans(sources: Sequence[int], row_bytes: int) -> Iterator[tuple[int, int, int]]:
    """First row, its source, and how many rows lie behind each other there; without those of source 0."""
    row = 0
    while row < len(sources):
        count = 1
        while row + count < len(sources) and sources[row + count] == sources[row] + count * row_bytes:
            count += 1
        if sources[row]:
            yield row, sources[row], count
        row += count
