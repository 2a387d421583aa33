"""Weights on a GPU, one copy for all graphs, repacked from the mapped files while a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.device.heap import release
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.webgpu.lowering.builder import Weight
from trigraph.runtime.device.webgpu.lowering.graph import lower
from trigraph.runtime.device.webgpu.plugin import Plugin
from trigraph.runtime.device.weight_source import WeightSource


class WebGpuWeightSource(WeightSource):
    """Repacked weights on the device. The CPU reads embeddings and routed experts in the mapped files."""

    def __init__(self, mapped: MappedWeights, values: dict[str, ort.OrtValue], *, has_half: bool) -> None:
        """`values`: of the device's sessions, by the names of their inputs, to be filled; `has_half`: see `lower`."""
        super().__init__(mapped)
        self._has_half = has_half
        self._values = values
        self._weights: dict[str, Weight] = {}
        self._positions = 0
        self._done = 0

    def hold(
        self, models: Callable[[], Mapping[str, onnx.ModelProto]], state: Mapping[str, int], budget: int | None
    ) -> Sequence[str]:
        loaded = {name: model for name, model in models().items() if name != "vision"}  # refused when it is opened
        self._positions = max((_positions(model.graph, state) for model in loaded.values()), default=0)
        for model in loaded.values():
            self.adapt(model)
        nodes = [node for model in loaded.values() for node in model.graph.node]
        self.reads_mapped = any(node.op_type == "GroupedExpertFFN" for node in nodes)
        written = {name for node in nodes if node.op_type == "PagedKVWrite" for name in node.input}
        cached = sum(size for name, size in state.items() if f"past.{name}" in written)
        weights, rest = sum(weight.nbytes for weight in self._weights.values()), sum(state.values()) - cached
        if budget is not None and weights + rest > budget:
            raise TrigraphError(
                f"weights and state take {(weights + rest) / 1e6:,.0f} MB of the GPU, more than "
                f"gpu_memory, {budget / 1e6:,.0f} MB; raise it, load with a smaller context, or use device=cpu"
            )
        taken = f"the GPU takes {weights / 1e6:,.0f} MB of weights and {rest / 1e6:,.0f} of state"
        attention = f"; the CPU computes attention, with {cached / 1e6:,.0f} MB of keys and values" if cached else ""
        return [taken + attention + ("; the CPU computes the routed experts" if self.reads_mapped else "")]

    def adapt(self, model: onnx.ModelProto) -> bool:
        """The graph in operators of the plugin, with weights as inputs."""
        self._weights |= lower(model, self._positions, has_half=self._has_half)
        return True

    def initializers(self, path: Path, graph: onnx.GraphProto, progress: Progress = silent) -> dict[str, ort.OrtValue]:
        """What the CPU reads; all else goes to the GPU."""
        inputs = {value.name for value in graph.input}
        # What is read back waits for copies before it, whose staging memory is held until then.
        settled = ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), Plugin.memory, 0)
        missing = [w for w in self._weights.values() if inputs & {*w.names} - self._values.keys()]
        for weight in missing:
            stored, mapped = np.empty(0), False
            if (tensor := weight.tensor) is not None:
                mapped = tensor.data_location == TensorProto.EXTERNAL
                stored = self.mapped.array(path, tensor)[1] if mapped else numpy_helper.to_array(tensor)
            for name, made in zip(weight.names, weight.make(stored), strict=True):
                self._values[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(made), Plugin.memory, 0)
            del made
            settled.numpy()
            if mapped:
                release(stored.ctypes.data, stored.nbytes)
            self._done += stored.nbytes
            progress("upload", min(self._done, self.mapped.nbytes), self.mapped.nbytes)
        return super().initializers(path, graph, progress)


def _positions(graph: onnx.GraphProto, state: Mapping[str, int]) -> int:
    """How many positions pages of keys have in all: no text has more."""
    for value in graph.input:
        if value.name.startswith("past.") and value.name.endswith(".key"):
            *_, heads, dim = (size.dim_value for size in value.type.tensor_type.shape.dim)
            itemsize = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).itemsize
            return state[value.name.removeprefix("past.")] // int(heads * dim * itemsize)
    return 0
