"""Attention over paged keys and values: what PagedKVWrite and PagedAttention compute.

Shapes: T or R rows (tokens) of S sequences laid end to end, H query heads, KV kv heads, head dimension D; the cache
is [pages, page size, KV, D], float16 or float32, or uint8 [pages, page size, KV, D / 32 x 34] of Q8_0 blocks.
Row i of sequence s has position past_lens[s] + i, and position p of sequence s lives in page page_table[s, p // page
size] at offset p % page size.
Heads in Q8_0 blocks are rotated by Hadamard matrices first, which spreads outliers over a block: keys by the largest
that fits, values by blocks of at most 64 (llama.cpp #21038). Queries turn as keys do, so that scores do not change, and
the values' rotation is undone after attention. Queries then are rounded to 8 bits in blocks of 32, so that scores are
made of exact integers.
Rotary embedding: NEOX pairs (i, i + rope_dims / 2) of the first rope_dims dimensions, angle p theta^(-2i / rope_dims).
With a context extended by YaRN, pairs from rope_ramp_end on are rope_factor times slower, those up to rope_ramp_start
keep their speed, and sines and cosines are multiplied with rope_magnitude.
With `positions` [3, T] (time, row, column: multi-axis rotary embedding), p is a row's position on the axis that turns
the pair. The axes take turns, pair i has axis i mod 3, each for as many pairs as `rope_sections` says; time turns all
others. What a row sees, and where its entry lies, is said by its place in the sequence as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Required, TypeAlias, TypedDict, Unpack

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating]
Cache: TypeAlias = NDArray[np.floating] | NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int32]

MOST_KEY, MOST_VALUE = 1024, 64
"""Largest sizes of the matrices that rotate a quantised head."""


class Rotary(TypedDict, total=False):
    """Attributes of both operators."""

    rope_dims: Required[int]
    rope_theta: Required[float]
    eps: Required[float]
    rope_factor: float
    rope_ramp_start: int
    rope_ramp_end: int
    rope_magnitude: float
    rope_sections: Sequence[int]


def _turning(place: NDArray[np.int64], positions: Ints | None, rotary: Rotary) -> NDArray[np.int64]:
    """The position that turns each rotary pair of each row: [T, rope_dims / 2], or [T, 1] if it is the same for all."""
    if positions is None:
        return place[:, None]
    pair = np.arange(rotary["rope_dims"] // 2)
    axis = np.where(pair < 3 * np.array(rotary["rope_sections"])[pair % 3], pair % 3, 0)
    return positions[axis].T.astype(np.int64)


def turns(positions: NDArray[np.int64], rotary: Rotary) -> tuple[Array, Array]:
    """Cosines and sines that turn the rotary pairs at positions [..., pairs or 1]: float64 [..., pairs]."""
    rope_dims, start = rotary["rope_dims"], rotary.get("rope_ramp_start", 0)
    half, length = rope_dims // 2, max(rotary.get("rope_ramp_end", 0) - start, 0.001)
    slow = np.clip((np.arange(half) - start) / length, 0, 1)
    frequency = float(rotary["rope_theta"]) ** (-2.0 * np.arange(half) / max(rope_dims, 1))
    angles = positions * frequency * (1 - slow + slow / rotary.get("rope_factor", 1.0))
    magnitude = rotary.get("rope_magnitude", 1.0)
    return np.cos(angles) * magnitude, np.sin(angles) * magnitude


def _norm_rotate(x: Array, weight: Array, positions: NDArray[np.int64], rotary: Rotary) -> Array:
    """RMS norm over the last axis of x [T, heads, D], then rotary at positions [T, pairs or 1]; float64."""
    x = x.astype(np.float64)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + rotary["eps"]) * weight
    rope_dims, half = rotary["rope_dims"], rotary["rope_dims"] // 2
    cosine, sine = turns(positions[:, None], rotary)
    a, b = x[..., :half], x[..., half:rope_dims]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, x[..., rope_dims:]], -1)


def rotate(x: Array, most: int) -> Array:
    """Heads [..., D] times H / sqrt(n) in blocks of n, the largest power of two up to `most` that divides D; again, x.

    H is the Hadamard matrix of Sylvester's construction: its element (i, j) is -1 to the number of bits in i & j.
    """
    size = min(most, x.shape[-1] & -x.shape[-1])
    bits = np.arange(size)[:, None] >> np.arange(10) & 1
    matrix = (1.0 - 2 * (bits @ bits.T % 2)) / np.sqrt(size)
    turned: Array = x.reshape(-1, size).astype(np.float64) @ matrix
    return turned.reshape(x.shape)


def encode(heads: Array, most: int, dtype: Any) -> Cache:
    """Heads as a cache of `dtype` holds them; quantised ones in blocks that are rotated up to `most`."""
    if dtype != np.uint8:
        return heads.astype(dtype)
    return quants.quantize(rotate(heads, most).astype(np.float32), GGMLQuantizationType.Q8_0)


def decode(stored: Cache) -> Array:
    """Heads in a cache, in float64; those of Q8_0 blocks are still rotated."""
    if stored.dtype != np.uint8:
        return stored.astype(np.float64)
    return quants.dequantize(stored, GGMLQuantizationType.Q8_0).astype(np.float64)


def round_blocks(x: Array) -> Array:
    """Heads [..., D] rounded in blocks of 32 to integers, up to 127, times the block's largest magnitude / 127."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    rounded: Array = np.rint(blocks / np.where(scale > 0, scale, 1)) * scale
    return rounded.reshape(x.shape)


def _positions(cu_seqlens: Ints, past_lens: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequence and position of every row."""
    lengths = np.diff(cu_seqlens)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    return sequence, np.arange(cu_seqlens[-1]) - cu_seqlens[sequence] + past_lens[sequence]


def paged_kv_write(
    k: Array,
    v: Array,
    k_norm: Array,
    past_key: Cache,
    past_value: Cache,
    cu_seqlens: Ints,
    past_lens: Ints,
    page_table: Ints,
    positions: Ints | None = None,
    **rotary: Unpack[Rotary],
) -> tuple[Cache, Cache]:
    """The cache with the rows' entries written: k [T, KV * D] normed and rotated, v [T, KV * D] as it is."""
    page, heads, width = past_key.shape[1], past_key.shape[2], len(k_norm)
    sequence, position = _positions(cu_seqlens, past_lens)
    pages, offsets = page_table[sequence, position // page], position % page
    key, value = past_key.copy(), past_value.copy()
    turned = _norm_rotate(k.reshape(-1, heads, width), k_norm, _turning(position, positions, rotary), rotary)
    key[pages, offsets] = encode(turned, MOST_KEY, key.dtype)
    value[pages, offsets] = encode(v.reshape(-1, heads, width), MOST_VALUE, value.dtype)
    return key, value


def turned_queries(
    q_gate: Array, q_norm: Array, cu_seqlens: Ints, past_lens: Ints, positions: Ints | None = None,
    *, rotated: bool, rotary: Rotary, gate: int = 1,
) -> Array:  # fmt: skip
    """Queries of q_gate [R, H * 2D], normed and turned, as keys of a cache of rotated heads are: float64 [R, H, D].

    Without `gate` it is [R, H * D].
    """
    q = q_gate.reshape(len(q_gate), -1, (1 + gate) * len(q_norm))[..., : len(q_norm)]
    _, position = _positions(cu_seqlens, past_lens)
    q = _norm_rotate(q, q_norm, _turning(position, positions, rotary), rotary)
    return rotate(q, MOST_KEY) if rotated else q


def paged_attention(
    q_gate: Array,
    q_norm: Array,
    key: Cache,
    value: Cache,
    cu_seqlens: Ints,
    past_lens: Ints,
    page_table: Ints,
    positions: Ints | None = None,
    groups: Ints | None = None,
    *,
    group: int = 1,
    gate: int = 1,
    causal: int = 1,
    window: int = 0,
    **rotary: Unpack[Rotary],
) -> Array:
    """sigmoid(gate) * softmax(q k / sqrt(D)) v of q_gate [R, H * 2D], each head's [q | gate]: float32 [R, H * D].

    A row sees positions 0 to its own; query head h reads kv head h // (H / KV). With `groups` [R, top], a row at or
    behind the end of more than `top` groups of `group` positions sees those of its list and what lies behind the last
    whole one. Without `gate` heads have none: q_gate is [R, H * D]. Without `causal` a row sees all positions up to
    its sequence's last one in the step. A `window` above 0 hides positions up to its own minus that.
    """
    page, kv_heads, width = key.shape[1], key.shape[2], len(q_norm)
    rotated = key.dtype == np.uint8
    heads = q_gate.shape[1] // ((1 + gate) * width)
    sequence, position = _positions(cu_seqlens, past_lens)
    q = turned_queries(q_gate, q_norm, cu_seqlens, past_lens, positions, rotated=rotated, rotary=rotary, gate=gate)
    q = round_blocks(q) if rotated else q
    gates = q_gate.reshape(-1, heads, (1 + gate) * width)[..., width:].astype(np.float64)
    ends = past_lens + np.diff(cu_seqlens) - 1
    out = np.empty((len(q), heads, width), np.float32)
    for row, (s, last) in enumerate(zip(sequence, position, strict=True)):
        seen = np.arange(max(0, last + 1 - window) if window else 0, (last if causal else ends[s]) + 1)
        if groups is not None and (whole := (last + 1) // group) > groups.shape[1]:
            seen = seen[np.isin(seen // group, groups[row]) | (seen >= whole * group)]
        entries = page_table[s, seen // page], seen % page
        k = np.repeat(decode(key[entries]), heads // kv_heads, 1)
        v = np.repeat(decode(value[entries]), heads // kv_heads, 1)
        scores = np.einsum("hd,phd->hp", q[row], k) / np.sqrt(width)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = np.einsum("hp,phd->hd", weights / weights.sum(-1, keepdims=True), v)
        attended = rotate(attended, MOST_VALUE) if rotated else attended
        out[row] = attended / (1 + np.exp(-gates[row])) if gate else attended
    return out.reshape(len(q), -1)
