"""Blocks of GGUF as MatMulNBits reads them: codes that lie in order, scales apart, and no loss.

A weight is (code - 2^(bits - 1)) * scale, plus the offset of its block where the type has minimums. Scales are float32,
as the operator has activations and scales of one type.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[Any]
"""An array of uint8."""
Floats = NDArray[np.float32]
Parts = tuple[Bytes, Floats, Floats | None]
"""Codes [..., blocks, elements], scales [..., blocks] and minimums [..., blocks] of stored blocks."""

_PIECE = 1 << 20  # bytes that a thread repacks at a time


class Layout(NamedTuple):
    """How blocks of a type are stored, and how they are read here."""

    stored_bytes: int
    stored_elements: int
    bits: int
    """The bits of a code."""
    block: int
    """Elements that share a scale."""
    unpack: Callable[[Bytes], Parts]
    has_offsets: bool = False

    def packed_shapes(self, rows: int, row_bytes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of codes and scales of a matrix [rows, row_bytes]."""
        count = row_bytes // self.stored_bytes * self.stored_elements // self.block
        return (rows, count, self.block * self.bits // 8), (rows, count)


def repack(stored: Bytes, type: str) -> list[NDArray[Any]]:
    """Codes, scales and, where the type has minimums, offsets [blocks, rows] of a stored matrix [rows, bytes]."""
    layout = LAYOUTS[type]
    shapes = layout.packed_shapes(*stored.shape)
    codes, scales = np.empty(shapes[0], np.uint8), np.empty(shapes[1], np.float32)
    offsets = np.empty(shapes[1][::-1], np.float32) if layout.has_offsets else None
    step = max(1, _PIECE // stored.shape[1])

    @np.errstate(invalid="ignore", over="ignore")  # weights may be infinite, or NaN
    def piece(first: int) -> None:
        rows = slice(first, first + step)
        blocks = stored[rows].reshape(-1, stored.shape[1] // layout.stored_bytes, layout.stored_bytes)
        found, scale, minimum = layout.unpack(blocks)
        found = found.reshape(*codes[rows].shape[:2], layout.block)
        codes[rows] = found if layout.bits == 8 else found[..., 0::2] | found[..., 1::2] << 4
        scales[rows] = scale.reshape(scales[rows].shape)
        if offsets is not None and minimum is not None:
            offsets[:, rows] = (2 ** (layout.bits - 1) * scales[rows] + minimum.reshape(scales[rows].shape)).T

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(piece, range(0, len(stored), step)):
            pass
    return [codes, scales] if offsets is None else [codes, scales, offsets]


def _half(blocks: Bytes, start: int) -> Floats:
    """The float16 at a place of each block."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view("<f2")[..., 0].astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """The low halves of all bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _q4_0(blocks: Bytes) -> Parts:
    return _nibbles(blocks[..., 2:]), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Parts:
    return _nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Parts:
    return blocks[..., 2:] ^ 0x80, _half(blocks, 0), None


def _scales_and_minimums(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and minimums of the eight sub-blocks of 32 elements, from six bits each."""
    packed = blocks[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1)
    return _half(blocks, 0)[..., None] * scales, -_half(blocks, 2)[..., None] * minimums


def _q4_k(blocks: Bytes) -> Parts:
    return _pairs(blocks[..., 16:]), *_scales_and_minimums(blocks)


def _q5_k(blocks: Bytes) -> Parts:
    high = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _pairs(blocks[..., 48:]) | high << 4, *_scales_and_minimums(blocks)


def _pairs(packed: Bytes) -> Bytes:
    """Sub-blocks [..., 8, 32] of which two lie in 32 bytes."""
    groups = packed.reshape(*packed.shape[:-1], 4, 32)
    return np.stack([groups & 15, groups >> 4], -2).reshape(*packed.shape[:-1], 8, 32)


def _q6_k(blocks: Bytes) -> Parts:
    low = blocks[..., :128].reshape(*blocks.shape[:-1], 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], -2).reshape(*blocks.shape[:-1], 2, 4, 32)
    high = blocks[..., None, 128:192].reshape(*blocks.shape[:-1], 2, 1, 32)
    high = high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = _half(blocks, 208)[..., None] * np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return (low | high << 4) + np.uint8(96), scales, None


LAYOUTS = {
    "Q4_0": Layout(18, 32, 4, 32, _q4_0),
    "Q4_1": Layout(20, 32, 4, 32, _q4_1, has_offsets=True),
    "Q8_0": Layout(34, 32, 8, 32, _q8_0),
    "Q4_K": Layout(144, 256, 4, 32, _q4_k, has_offsets=True),
    "Q5_K": Layout(176, 256, 8, 32, _q5_k, has_offsets=True),
    "Q6_K": Layout(210, 256, 8, 16, _q6_k),
}
"""By type. Codes of five and six bits take eight: the plugin has 2, 4 and 8."""
