"""The weights of a package on a GPU, once for all graphs; what does not fit, the CPU reads in the mapped files."""

from __future__ import annotations

from collections.abc import Mapping
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
from trigraph.runtime.device.memory import RetryError
from trigraph.runtime.device.parts.experts import held_stacks, pieces, split, tables
from trigraph.runtime.device.parts.moving_experts import MovingExperts, Stack
from trigraph.runtime.device.parts.placement import GpuShare
from trigraph.runtime.device.parts.tables import host_tables, keep_tables
from trigraph.runtime.device.weight_source import WeightSource

Values = Mapping[str, ort.OrtValue]

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
            held |= self._shared_tables(self.moving, graph, values, held)
        return values | held

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
            "load with a smaller --gpu-memory, a smaller context or fewer sequences"
        )
