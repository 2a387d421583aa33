"""Weights as external initializers that point into the GGUF, and the side file for types no kernel reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx_ir as ir
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from trigraph.exporter.package.manifest import SIDE_FILE
from trigraph.models.drafter.drafter import BlockDrafter
from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import Tensor
from trigraph.models.model import Model
from trigraph.models.names import FFN_GATE_EXPS, FFN_GATE_UP_EXPS, role, scale
from trigraph.models.progress import Progress
from trigraph.models.tensor_types import TENSOR_TYPES, dequantize
from trigraph.models.vision.tower import Tower

_FLOATS = {"F32": ir.DataType.FLOAT, "F16": ir.DataType.FLOAT16, "BF16": ir.DataType.BFLOAT16}
SIDE_ALIGNMENT = 64
# Matrices whose products meet silu inside an operator, which knows no factors.
_FACTOR_WITHIN = (FFN_GATE_EXPS, FFN_GATE_UP_EXPS)
# Elements dequantised at a time: 16 MiB in float32, a few times that with gguf's temporaries.
CHUNK_ELEMENTS = 4 << 20


@dataclass(frozen=True)
class Matrix:
    """A weight matrix, or a stack of them, in the type a kernel reads it in."""

    tensor: ir.ExternalTensor
    type: str
    """ggml type name."""

    @property
    def rows(self) -> int:
        """N of a matrix [N, row]."""
        return self.tensor.shape.numpy()[0]


@dataclass(frozen=True)
class _Placed:
    """Where the bytes of a weight are, as the graphs see it."""

    location: str
    offset: int
    type: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.type, self.shape[-1])


class Source(Protocol):
    """What has tensors: a model, or a model with its tower and drafter."""

    def tensor(self, name: str) -> Tensor:
        """A tensor that is always there; KeyError otherwise."""

    def find(self, name: str) -> Tensor | None:
        """A tensor that may be left out."""

    def array(self, name: str) -> NDArray[np.float32]:
        """A tensor in float32, dequantised."""

    def pieces(self, name: str) -> Iterable[NDArray[np.uint8]]:
        """The bytes of a tensor, whole rows at a time."""


@dataclass(frozen=True)
class Joined:
    """The tensors of a text model, and of its vision tower and drafter if it has them; they share no names."""

    model: Model
    parts: tuple[Tower | BlockDrafter, ...]

    def tensor(self, name: str) -> Tensor:
        """A tensor of any; KeyError otherwise."""
        return self._of(name).tensor(name)

    def find(self, name: str) -> Tensor | None:
        """A tensor of any, that may be left out."""
        part = self._of(name)
        return self.model.find(name) if part is self.model else part.tensor(name)

    def array(self, name: str) -> NDArray[np.float32]:
        """A tensor of any in float32, dequantised."""
        return self._of(name).array(name)

    def pieces(self, name: str) -> Iterable[NDArray[np.uint8]]:
        """The bytes of a tensor of any, whole rows at a time."""
        return self._of(name).pieces(name)

    def _of(self, name: str) -> Model | Tower | BlockDrafter:
        return next((part for part in self.parts if name in part.tensors), self.model)


class Weights:
    """Finds each weight of a model a place: the GGUF when a kernel reads its type there, the side file otherwise.

    `locations` gives, for each weight file, the path that graphs state, relative to the folder a host loads from.
    """

    def __init__(self, model: Source, locations: Mapping[Path, str], side_location: str) -> None:
        self._model = model
        self._locations = locations
        self._side_location = side_location
        self._conversions: dict[str, tuple[Tensor, _Placed]] = {}
        self.side_bytes = 0  # size that the side file needs for the weights asked for so far

    def matrix(self, name: str, rows: int | None = None) -> Matrix:
        """A matrix [N, row], a stack of them [X, N, row], or a vector as one row; `rows` keeps the first of N."""
        tensor = self._model.tensor(name)
        if tensor.type not in TENSOR_TYPES:
            raise TrigraphError(
                f"{tensor.file}: tensor {tensor.name!r} has type {tensor.type}, which no kernel reads; "
                "use another quantisation"
            )
        within = self._has_factor(name) and role(name) in _FACTOR_WITHIN
        placed = self._converted(tensor, "Q8_0") if within else self._in_gguf(tensor)
        shape = placed.shape if len(placed.shape) > 1 else (1, *placed.shape)
        if rows is not None and rows < shape[0]:
            name, shape = f"{name}[:{rows}]", (rows, *shape[1:])
        dtype = _FLOATS.get(placed.type, ir.DataType.UINT8)
        dims = shape if placed.type in _FLOATS else (*shape[:-1], placed.row_bytes)
        return Matrix(_external(name, placed, dims, dtype, math.prod(shape[:-1]) * placed.row_bytes), placed.type)

    def float32(self, name: str) -> ir.ExternalTensor:
        """A norm, bias or convolution kernel in float32, whatever type the file stores it in."""
        tensor = self._model.tensor(name)
        placed = self._in_gguf(tensor) if tensor.type == "F32" else self._converted(tensor, "F32")
        return _external(name, placed, placed.shape, ir.DataType.FLOAT, 4 * math.prod(placed.shape))

    def factor(self, name: str) -> str | None:
        """The name of the factor [1], or [X] of a stack, that products with a matrix are to be multiplied by."""
        return scale(name) if self._has_factor(name) and role(name) not in _FACTOR_WITHIN else None

    def _has_factor(self, name: str) -> bool:
        return name.endswith("weight") and self.has(scale(name))

    def has(self, name: str) -> bool:
        """Whether the model has a tensor."""
        return self._model.find(name) is not None

    def notices(self) -> tuple[str, ...]:
        """One sentence for each kind of conversion."""
        kinds = Counter(_kind(tensor, placed) for tensor, placed in self._conversions.values())
        return tuple(
            f"{count} tensor{'s' if count > 1 else ''} of {old} stored as {new} in {SIDE_FILE}: {reason}"
            for (old, new, reason), count in sorted(kinds.items())
        )

    def write_side_file(self, path: Path, progress: Progress) -> None:
        """Write the converted weights, a few megabytes of them in memory at a time."""
        done = 0
        with open(path, "wb") as file:
            for tensor, placed in self._conversions.values():
                file.seek(placed.offset)
                factors = self._model.array(scale(tensor.name)) if self._has_factor(tensor.name) else None
                rows = _stored_rows(tensor) if tensor.offset is not None else self._model.pieces(tensor.name)
                for chunk in _converted_chunks(tensor, rows, placed.type, factors):
                    file.write(chunk)
                    done += len(chunk)
                    progress("convert", done, self.side_bytes)
            file.truncate(self.side_bytes)

    def _in_gguf(self, tensor: Tensor) -> _Placed:
        if tensor.offset is None:
            return self._converted(tensor, tensor.type)
        return _Placed(self._locations[tensor.file], tensor.offset, tensor.type, tensor.shape)

    def _converted(self, tensor: Tensor, new_type: str) -> _Placed:
        if tensor.name not in self._conversions:
            if new_type != tensor.type:
                _check_convertible(tensor)
            placed = _Placed(self._side_location, self.side_bytes, new_type, tensor.shape)
            self._conversions[tensor.name] = (tensor, placed)
            end = placed.offset + math.prod(tensor.shape[:-1]) * placed.row_bytes
            self.side_bytes = -(-end // SIDE_ALIGNMENT) * SIDE_ALIGNMENT
        return self._conversions[tensor.name][1]


def row_bytes(type_name: str, elements: int) -> int:
    """Bytes of a row of `elements` in a ggml type."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    return int(elements // block * size)


def _external(name: str, placed: _Placed, dims: tuple[int, ...], dtype: ir.DataType, nbytes: int) -> ir.ExternalTensor:
    return ir.ExternalTensor(placed.location, placed.offset, nbytes, dtype, shape=ir.Shape(dims), name=name)


def _check_convertible(tensor: Tensor) -> None:
    qtype = GGMLQuantizationType[tensor.type]
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[qtype][1]), np.uint8), tensor.type)
    except NotImplementedError:
        raise TrigraphError(
            f"{tensor.file}: tensor {tensor.name!r} has type {tensor.type}, which cannot be read or converted; "
            "use another quantisation"
        ) from None


def _kind(tensor: Tensor, placed: _Placed) -> tuple[str, str, str]:
    """The type of a converted tensor, the new one, and why."""
    if placed.type != tensor.type:
        reason = "no kernel reads it there" if placed.type == "F32" else "no kernel multiplies it by its factor"
    else:
        reason = "the file holds what they are made of"
    return tensor.type, placed.type, reason


def _stored_rows(tensor: Tensor) -> Iterator[NDArray[np.uint8]]:
    """The rows of a tensor that lies in its file, some at a time."""
    total, step = math.prod(tensor.shape[:-1]), max(1, CHUNK_ELEMENTS // tensor.shape[-1])
    with open(tensor.file, "rb") as file:
        file.seek(tensor.offset or 0)
        for start in range(0, total, step):
            size = min(step, total - start) * tensor.row_bytes
            content = file.read(size)
            if len(content) < size:
                raise TrigraphError(f"{tensor.file}: became shorter while it was read; wait until it is complete")
            yield np.frombuffer(content, np.uint8)


def _converted_chunks(
    tensor: Tensor, pieces: Iterable[NDArray[np.uint8]], new_type: str, factors: NDArray[np.float32] | None
) -> Iterator[bytes]:
    """The rows of a tensor in another type, some at a time; each matrix of a stack times its factor."""
    total, start = math.prod(tensor.shape[:-1]), 0
    of_rows = None if factors is None else np.repeat(factors, total // len(factors))[:, None]
    for piece in pieces:
        if new_type == tensor.type:
            yield piece.tobytes()
            continue
        rows = piece.reshape(-1, tensor.row_bytes)
        values = dequantize(rows, tensor.type)
        if of_rows is not None:
            values = values * of_rows[start : start + len(rows)]
        start += len(rows)
        yield quants.quantize(values, GGMLQuantizationType[new_type]).tobytes()
