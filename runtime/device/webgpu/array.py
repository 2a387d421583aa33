"""State in a GPU's memory, which ONNX Runtime owns: rows are read and written by small graphs."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import helper

from trigraph.runtime.device.exchange import Array
from trigraph.runtime.device.webgpu.plugin import Plugin


class WebGpuArray:
    """An array on the device. What is read is a copy."""

    def __init__(self, plugin: Plugin, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Its content is undefined."""
        self._plugin = plugin
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.nbytes = math.prod(shape) * self.dtype.itemsize
        """Bytes of all elements."""
        self.value = ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype, plugin.memory, 0)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        numbers = np.arange(len(self))[index]
        rows = self._gather(np.atleast_1d(numbers), "cpu").numpy()
        found: Array = rows[0] if numbers.ndim == 0 else rows
        return found

    def __setitem__(self, index: Any, value: Array) -> None:
        numbers = np.atleast_1d(np.arange(len(self))[index])
        rows = np.ascontiguousarray(np.broadcast_to(value, (len(numbers), *self.shape[1:])), self.dtype)
        self._scatter(numbers, ort.OrtValue.ortvalue_from_numpy(rows))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)

    def copy_row(self, source: int, target: int) -> None:
        """self[target] = self[source], on the device."""
        self._scatter(np.array([target]), self._gather(np.array([source]), self._plugin.memory))

    def _gather(self, numbers: Array, where: str) -> ort.OrtValue:
        io = self._graphs[0].io_binding()
        io.bind_ortvalue_input("memory", self.value)
        io.bind_cpu_input("numbers", numbers.astype(np.int64))
        io.bind_output("result", where)
        self._graphs[0].run_with_iobinding(io)
        return io.get_outputs()[0]

    def _scatter(self, numbers: Array, rows: ort.OrtValue) -> None:
        io = self._graphs[1].io_binding()
        io.bind_ortvalue_input("memory", self.value)
        io.bind_cpu_input("numbers", numbers.astype(np.int64)[:, None])
        io.bind_ortvalue_input("rows", rows)
        io.bind_ortvalue_output("result", self.value)
        self._graphs[1].run_with_iobinding(io)

    @cached_property
    def _graphs(self) -> tuple[ort.InferenceSession, ort.InferenceSession]:
        """What reads rows of this type, and what writes them."""
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        return (
            self._plugin.graph("Gather", ("memory", "numbers"), kind),
            self._plugin.graph("ScatterND", ("memory", "numbers", "rows"), kind),
        )
