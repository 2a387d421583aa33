"""What random calls of operators are made of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from trigraph.models.tensor_types import BLOCK_TYPES

Array = NDArray[Any]
TYPES = ("F32", "F16", *sorted(BLOCK_TYPES))


@dataclass
class Call:
    """One run of an operator. What is set is valid, until it is damaged."""

    op: str
    inputs: list[Array | None]
    output_types: tuple[Any, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, Any]
    alias: dict[int, int] = field(default_factory=dict)
    """By output: the input that shares its buffer."""


def draw_count(rng: random.Random, most: int) -> int:
    return rng.choice((0, 1, 2, rng.randint(0, most), rng.randint(0, most)))


def draw_width(rng: random.Random, *kinds: str) -> int:
    block = max(GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0] for kind in kinds)
    return block * rng.randint(1, 3) if block > 1 else rng.randint(0, 300)


def draw_floats(rng: random.Random, *shape: int) -> Array:
    values = np.random.default_rng(rng.getrandbits(32)).standard_normal(shape).astype(np.float32)
    scale = rng.choice((1, 1, 1, 0, 1e-30, 1e30))
    if values.size and rng.random() < 0.1:
        values.flat[rng.randrange(values.size)] = rng.choice((np.nan, np.inf, -np.inf))
    with np.errstate(invalid="ignore"):  # infinity by 0
        return values * np.float32(scale)


def draw_weight(rng: random.Random, kind: str, *shape: int) -> Array:
    """Random weights [.., width], from any element of a mapped file on: any bytes are a block."""
    if kind in ("F32", "F16"):
        values = draw_floats(rng, *shape).astype("f4" if kind == "F32" else "f2")
    else:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        bits = np.random.default_rng(rng.getrandbits(32))
        values = bits.integers(0, 256, (*shape[:-1], shape[-1] // block * size), np.uint8)
    before = rng.choice((0, 1, 3, 32))
    file = np.empty(before + values.size, values.dtype)
    file[before:] = values.reshape(-1)
    return file[before:].reshape(values.shape)


def draw_indices(rng: random.Random, count: int, below: int, dtype: Any) -> Array:
    return np.array([rng.randrange(below) for _ in range(count)], dtype)


def starts_of(lengths: Sequence[int]) -> Array:
    return np.cumsum([0, *lengths]).astype(np.int32)
