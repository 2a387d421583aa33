"""The weights of a package on a GPU, once for all graphs; what does not fit, the CPU reads in the mapped files."""

from __future__ import annotations

import logging
import mmap
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.device.cuda.fusion import fuse
from trigraph.runtime.device.cuda.library import PROVIDER, CudaLibrary
from trigraph.runtime.device.cuda.weights import CudaWeights
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.memory import RetryError, free_memory
from trigraph.runtime.device.parts.experts import held_stacks, host_stacks, pieces, split, tables
from trigraph.runtime.device.parts.moving_experts import MovingExperts, Stack
from trigraph.runtime.device.parts.placement import GpuShare
from trigraph.runtime.device.parts.tables import host_tables, keep_tables
from trigraph.runtime.device.weight_source import WeightSource

Values = Mapping[str, ort.OrtValue]

_log = logging.getLogger("trigraph.device")

_REGISTERED_SHARE = 0.75  # of the host's free memory, at most: others cannot have what is registered
_SHORTAGE = (
    "out of memory",
    "Failed to allocate memory",
    "bytes of memory left",
    "Available memory of",
    "ONNX Runtime failed in GetOutput",  # the memory of a node's output
)
"""How CUDA, ONNX Runtime and our kernels word it."""


class CudaWeightSource(WeightSource):
    """Copies on the GPU, and the experts that are the CPU's."""

    def __init__(self, library: CudaLibrary, mapped: MappedWeights, threads: int) -> None:
        super().__init__(mapped)
        self.reads_mapped = False
        self.share: GpuShare | None = None
        """What lies on the GPU; None before that is decided."""
        self.moving: MovingExperts | None = None
        """What moves experts, where their places are not fixed."""
        self._library = library
        self._threads = max(1, threads - 1)  # one has the engine, which waits for the GPU
        self._copies = CudaWeights(library)
        self._asked = set[int]()  # addresses of stacks that were to be registered

    @property
    def piece(self) -> int | None:
        return None if self.share is None else self.share.piece

    def place(self, share: GpuShare, experts: Mapping[str, int], counts: Path) -> None:
        self.share, self.reads_mapped = share, share.is_split
        if share.is_split and self._library.provider == PROVIDER:
            self.moving = MovingExperts(self._library, share, experts, counts)

    def adapt(self, model: onnx.ModelProto) -> bool:
        """Nodes are fused. The CPU computes the routed experts that lie there, and reads rows of n-grams' table."""
        if self.share:
            split(model, self.share, self._threads, {} if self.moving is None else self.moving.places)
        keep_tables(model, self._threads)
        fuse(model)
        return True

    def initializers(self, path: Path, graph: onnx.GraphProto, progress: Progress = silent) -> dict[str, ort.OrtValue]:
        values = super().initializers(path, graph, progress)
        if self._library.provider != PROVIDER:
            return values
        total, held = self.mapped.resident_bytes, dict[str, ort.OrtValue]()

        def copied(size: int) -> None:
            self.mapped.uploaded += size
            progress("upload", min(self.mapped.uploaded, total), total)

        for names in pieces(graph, values, host_tables(graph)):
            piece = {name: values[name] for name in names}
            held |= self._copies.on_device(piece, copied)
        if self.moving:
            self._register(values[name] for name in host_stacks(graph))
            held |= self._shared_tables(self.moving, graph, values, held)
        return values | held

    def _register(self, stacks: Iterable[ort.OrtValue]) -> None:
        """Lets the GPU read these stacks where they lie. What it cannot, it reads by way of pinned memory."""
        new = [stack for stack in stacks if stack.data_ptr() not in self._asked]
        self._asked.update(stack.data_ptr() for stack in new)
        stretches = whole_pages([(stack.data_ptr(), stack.tensor_size_in_bytes()) for stack in new])
        free, size = free_memory(), sum(size for _, size in stretches)
        done = free is not None and size <= _REGISTERED_SHARE * free
        for address, nbytes in stretches:
            if done := done and self._library.register(address, nbytes):
                weakref.finalize(self, self._library.unregister, address)
        if stretches and not done:
            _log.info(
                "copies of %.1f GB of experts to GPU %d go by way of pinned memory", size / 1e9, self._library.number
            )

    def _shared_tables(
        self, moving: MovingExperts, graph: onnx.GraphProto, mapped: Values, held: Values
    ) -> dict[str, ort.OrtValue]:
        """The tables of a graph's layers, on the GPU. Tells what moves experts where their weights lie."""
        sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer}

        def stack(whole: str, part: str) -> Stack:
            nbytes = mapped[whole].tensor_size_in_bytes() // sizes[whole]
            return Stack(mapped[whole].data_ptr(), held[part].data_ptr(), nbytes)

        stacks = {layer: [stack(*names) for names in parts] for layer, parts in held_stacks(graph).items()}
        moving.found(stacks, self._copies.release)
        like = {layer: ort.OrtValue.ortvalue_from_numpy(np.zeros(sizes[layer], np.int32)) for layer in tables(graph)}
        return {table: self._copies.at(moving.table(layer), like[layer]) for layer, table in tables(graph).items()}

    def before_step(self, graph: str) -> None:
        """Moves experts ahead of a verify."""
        if self.moving and graph == "verify":
            self._library.use()
            self.moving.before_step()

    def shortage(self, error: Exception) -> TrigraphError | None:
        """Experts go back to the CPU for a want of the GPU's memory."""
        if not any(sign in str(error) for sign in _SHORTAGE):
            return None
        if self.moving is not None and self.moving.give_back():
            return RetryError("a step failed as a GPU had no memory left; the CPU has taken some experts back")
        return TrigraphError(
            f"a step failed as GPU {self._library.number} has no memory left; close other programs that use it, or "
            "load with a smaller gpu_memory, a smaller context or fewer sequences"
        )


def whole_pages(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Addresses and sizes of all pages that hold something of these; neighbours are one stretch."""
    found: list[tuple[int, int]] = []
    for address, size in sorted(places):
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        end = -(-(address + size) // mmap.PAGESIZE) * mmap.PAGESIZE
        if found and start <= sum(found[-1]):
            first, length = found.pop()
            start, end = first, max(end, first + length)
        found.append((start, end - start))
    return found
