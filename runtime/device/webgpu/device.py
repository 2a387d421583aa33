"""A GPU behind ONNX Runtime's WebGPU plugin: graphs run in its operators, and in those of the CPU library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import onnxruntime as ort

from trigraph.custom_ops import library_path
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.exchange import Memory
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.webgpu.array import WebGpuArray
from trigraph.runtime.device.webgpu.plugin import PROVIDER, Plugin, WebGpuBinding, open_plugin
from trigraph.runtime.device.webgpu.weight_source import WebGpuWeightSource


@dataclass(frozen=True, kw_only=True)
class WebGpuDevice(Device):
    """A GPU, for one engine. State and weights lie there; inputs and results of steps in the host's memory."""

    plugin: Plugin
    weights: dict[str, ort.OrtValue] = field(default_factory=dict)
    """By input of the lowered graphs."""

    name: ClassVar[str] = "webgpu"
    is_host: ClassVar[bool] = False
    chunk: ClassVar[int] = 128  # attention takes memory for each row and position
    most_pending: ClassVar[int] = 32

    @property
    def arithmetic(self) -> str:
        return self.plugin.description

    def session(self, model: bytes, options: ort.SessionOptions, graph: str) -> ort.InferenceSession:
        return self.plugin.session(model, options, self.weights)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        """State on the device, but for keys and values that the CPU reads; steps' inputs and results are the host's."""
        on_gpu = dtype == np.float32 or (dtype == np.float16 and self.plugin.has_half)
        return WebGpuArray(self.plugin, shape, dtype) if on_gpu else super().zeros(shape, dtype)

    def bind(self, io: WebGpuBinding, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> None:
        """ONNX Runtime moves what lies in the host's memory."""
        values = {name: _value(memory) for name, memory in inputs.items()}
        io.host_inputs |= {name: values[name] for name, memory in inputs.items() if isinstance(memory, np.ndarray)}
        for name, value in values.items():
            io.bind_ortvalue_input(name, value)
        for name, memory in outputs.items():
            io.bind_ortvalue_output(name, _value(memory))

    def copy_row(self, memory: Memory, source: int, target: int) -> None:
        if isinstance(memory, WebGpuArray):
            memory.copy_row(source, target)
        else:
            super().copy_row(memory, source, target)

    def weight_source(self, mapped: MappedWeights, threads: int) -> WebGpuWeightSource:
        return WebGpuWeightSource(mapped, self.weights, has_half=self.plugin.has_half)


def _value(memory: Memory) -> ort.OrtValue:
    """Memory as ONNX Runtime knows it."""
    return ort.OrtValue.ortvalue_from_numpy(memory) if isinstance(memory, np.ndarray) else memory.value


def open_webgpu(number: int = 0) -> WebGpuDevice:
    """A GPU, by its number among those that the plugin shows; routed experts are the CPU's.

    Raises TrigraphError that says what is missing, and what to do about it.
    """
    return WebGpuDevice(library_path("cpu"), "WebGPU", provider=PROVIDER, plugin=open_plugin(number))
