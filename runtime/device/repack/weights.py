"""Weights in the order in which the products of a processor read them: copies in memory of their own."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime as ort

from trigraph.custom_ops import DOMAIN, library_function
from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.device.device import Device, aligned_zeros
from trigraph.runtime.device.exchange import Array
from trigraph.runtime.device.heap import release
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.memory import free_memory
from trigraph.runtime.device.weight_source import WeightSource

SIDE_BY_SIDE = {"avx2": 8, "avx_vnni": 8, "avx512": 16}
"""Rows that lie side by side, by instruction set: those whose products read repacked weights faster."""

_PIECE = 4 << 20  # bytes that are repacked at a time
_SPARE = 1 << 30  # bytes that copies made beside steps leave to others

# Attributes that name types of weights, and the input of the first of these.
_TYPES = {
    "BlockMatMul": {"types": 1},
    "GatedBlockMatMul": {"type": 2},
    "GroupedExpertFFN": {"gate_type": 3, "down_type": 4, "up_type": 5},
}


class _Copy(NamedTuple):
    """A copy of the first `nbytes` bytes of a mapped weight."""

    array: Array
    nbytes: int


class RepackedWeights(WeightSource):
    """Copies of mapped weights for the processor."""

    def __init__(self, mapped: MappedWeights, kernels: str, pause: Callable[[float], None] | None = None) -> None:
        """`kernels`: of SIDE_BY_SIDE those that read the copies.

        `pause`: where steps run on the mapped files meanwhile, called after each piece of a copy with the seconds that
        it took.
        """
        super().__init__(mapped)
        self.reads_mapped = False
        self.copies: dict[int, _Copy] = {}
        """By address in the mapped files. A graph that reads the first rows of a weight comes after those that read
        all: a longer copy replaces a shorter one, whose memory goes."""
        self._rows, self._pause = SIDE_BY_SIDE[kernels], pause
        self._suffix = f"_R{self._rows}"

    def adapt(self, model: onnx.ModelProto) -> bool:
        """Types of weights that are to be repacked say so."""
        shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
        readers = Counter(name for node in model.graph.node for name in node.input)
        changed = False
        for weight in _typed_weights(model.graph):
            fused = weight.attribute.name == "gate_type" and not any(a.name == "up_type" for a in weight.node.attribute)
            rows = shapes.get(weight.name, [1, 1])[-2]
            int8 = any(a.name == "activations" and a.s == b"int8" for a in weight.node.attribute)
            whole = rows % (2 * self._rows if fused else self._rows) == 0
            if int8 and whole and readers[weight.name] == 1 and repacked_bytes(weight.type):
                weight.rename(weight.type + self._suffix)
                changed = True
        return changed

    def initializers(self, path: Path, graph: onnx.GraphProto, progress: Progress = silent) -> dict[str, ort.OrtValue]:
        """Gives the graph the shapes of copies, too."""
        values = super().initializers(path, graph, progress)
        types = {weight.name: weight.type for weight in _typed_weights(graph) if weight.type.endswith(self._suffix)}
        plain = {
            name: _Plain.of(values[name], type.removesuffix(self._suffix), self._rows) for name, type in types.items()
        }
        missing = [weight for weight in plain.values() if self._copied(weight) < weight.nbytes]
        _check_memory(sum(weight.copy_nbytes for weight in missing))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for weight in missing:
                self.copies[weight.address] = _Copy(self._copy(weight, pool), weight.nbytes)
                done = sum(copy.nbytes for copy in self.copies.values())
                progress("repack", done, max(done, self.mapped.nbytes))
        for tensor in graph.initializer:
            if tensor.name in plain:
                tensor.dims[:] = plain[tensor.name].copy_shape
        return values | {
            name: ort.OrtValue.ortvalue_from_numpy(self.copies[weight.address].array[: weight.shape[0]])
            for name, weight in plain.items()
        }

    def _copy(self, weight: _Plain, pool: ThreadPoolExecutor) -> Array:
        """In pieces of milliseconds: on all threads, or with pauses between while the mapped pages are still in use."""
        if self._pause is not None:
            _check_memory(weight.copy_nbytes, _SPARE)
        copy = aligned_zeros(weight.copy_shape, np.dtype(np.uint8))
        if self._pause is None:
            for _ in pool.map(partial(weight.copy_piece, copy), weight.pieces):
                pass
            release(weight.address, weight.nbytes)
            return copy
        for first in weight.pieces:
            started = time.perf_counter()
            weight.copy_piece(copy, first)
            self._pause(time.perf_counter() - started)
        return copy

    def _copied(self, weight: _Plain) -> int:
        """Bytes of it of which there is a copy."""
        return self.copies[weight.address].nbytes if weight.address in self.copies else 0

    def release_mapped(self) -> None:
        """Lets the system take back the pages of mapped files of which there are copies."""
        for address, copy in self.copies.items():
            release(address, copy.nbytes)


@dataclass(frozen=True)
class _TypedWeight:
    """An input of a node that holds weights, and the attribute that names its type."""

    node: onnx.NodeProto
    name: str
    attribute: onnx.AttributeProto
    index: int

    @property
    def type(self) -> str:
        return self._types()[self.index]

    def rename(self, type: str) -> None:
        """Changes the type."""
        types = self._types()
        types[self.index] = type
        self.attribute.s = ",".join(types).encode()

    def _types(self) -> list[str]:
        return self.attribute.s.decode().split(",")


def _typed_weights(graph: onnx.GraphProto) -> Iterator[_TypedWeight]:
    for node in graph.node:
        places = _TYPES.get(node.op_type, {}) if node.domain == DOMAIN else {}
        for attribute in node.attribute:
            if attribute.name in places:
                for index in range(attribute.s.count(b",") + 1):
                    yield _TypedWeight(node, node.input[places[attribute.name] + index], attribute, index)


def _check_memory(needed: int, spare: int = 0) -> None:
    free = free_memory()
    if free is not None and needed + spare > free:
        raise TrigraphError(
            f"repacked weights take {needed / 1e9:.1f} GB of memory, of which {free / 1e9:.1f} GB are free; use "
            "repack=off"
        )


class _Plain(NamedTuple):
    """A mapped weight of `groups` groups of `rows` rows, each of `blocks` super-blocks."""

    address: int
    type: str
    shape: tuple[int, ...]
    groups: int
    rows: int
    blocks: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)

    @property
    def copy_shape(self) -> tuple[int, ...]:
        return *self.shape[:-1], self.blocks * repacked_bytes(self.type)

    @property
    def copy_nbytes(self) -> int:
        return math.prod(self.copy_shape)

    @classmethod
    def of(cls, value: ort.OrtValue, type: str, rows: int) -> _Plain:
        shape = tuple(value.shape())
        groups = math.prod(shape) // (rows * shape[-1])
        return cls(value.data_ptr(), type, shape, groups, rows, shape[-1] // _plain_bytes(type))

    @property
    def pieces(self) -> range:
        """The first group of each piece."""
        return range(0, self.groups, self._step)

    @property
    def _step(self) -> int:
        return max(1, _PIECE // (self.rows * self.shape[-1]))

    def copy_piece(self, copy: Array, first: int) -> None:
        """Fills a piece of a copy, in which `rows` rows lie side by side."""
        repack = library_function("trigraph_repack")
        if repack is None:
            raise TrigraphError("the operator library cannot repack weights; reinstall trigraph")
        repack.argtypes = [ctypes.c_char_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
        repack.restype = None
        source, target = (first * self.rows * row for row in (self.shape[-1], self.copy_shape[-1]))
        count = min(self._step, self.groups - first)
        repack(self.type.encode(), self.address + source, count, self.rows, self.blocks, copy.ctypes.data + target)


def repacked_weights(mapped: MappedWeights, device: Device) -> RepackedWeights:
    """The repacked weights for a device's kernels. Raises TrigraphError for kernels that read weights as they are."""
    if not device.is_host:
        raise TrigraphError(f"repacked weights are for the CPU, and the device is {device.name}")
    if device.kernels not in SIDE_BY_SIDE:
        raise TrigraphError(
            f"repacked weights are for kernels of {', '.join(SIDE_BY_SIDE)}; here those of {device.kernels} run, which "
            "read weights as they are"
        )
    return RepackedWeights(mapped, device.kernels)


def repacked_bytes(type: str) -> int:
    """Bytes of a repacked super-block of a ggml type; 0 for types that stay as they are."""
    return _bytes("trigraph_repacked_bytes", type)


def _plain_bytes(type: str) -> int:
    """Bytes of a plain super-block of a type that can be repacked."""
    return _bytes("trigraph_plain_bytes", type)


def _bytes(name: str, type: str) -> int:
    function = library_function(name)
    if function is None:
        return 0
    function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int64
    return int(function(type.encode()))


def bytes_of_copies(graph: onnx.GraphProto) -> int:
    """Bytes that copies of a graph's weights take, at most."""
    shapes = {tensor.name: tensor.dims for tensor in graph.initializer}
    sizes = {
        weight.name: math.prod(shapes[weight.name]) // _plain_bytes(weight.type) * block
        for weight in _typed_weights(graph)
        if weight.name in shapes and (block := repacked_bytes(weight.type))
    }
    return sum(sizes.values())
