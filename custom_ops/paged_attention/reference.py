"""Attention over paged keys and values: what PagedKVWrite and PagedAttention compute.

Shapes: T or R rows (tokens) of S sequences laid end to end, H query heads, KV kv heads, head dimension D; the cache
is [pages, page size, KV, D], float16 or float32. Row i of sequence s has position past_lens[s] + i, and position p of
sequence s lives in page page_table[s, p // page size] at offset p % page size.
Rotary embedding: NEOX pairs (i, i + rope_dims / 2) of the first rope_dims dimensions, angle p theta^(-2i / rope_dims).
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating]
Ints: TypeAlias = NDArray[np.int32]


def _norm_rotate(
    x: Array, weight: Array, positions: NDArray[np.int64], rope_dims: int, theta: float, eps: float
) -> Array:
    """RMS norm over the last axis of x [T, heads, D], then rotary at positions [T]; float64."""
    x = x.astype(np.float64)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    half = rope_dims // 2
    angles = positions[:, None, None] * float(theta) ** (-2.0 * np.arange(half) / max(rope_dims, 1))
    cosine, sine = np.cos(angles), np.sin(angles)
    a, b = x[..., :half], x[..., half:rope_dims]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, x[..., rope_dims:]], -1)


def _positions(cu_seqlens: Ints, past_lens: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequence and position of every row."""
    lengths = np.diff(cu_seqlens)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    return sequence, np.arange(cu_seqlens[-1]) - cu_seqlens[sequence] + past_lens[sequence]


def paged_kv_write(
    k: Array,
    v: Array,
    k_norm: Array,
    past_key: Array,
    past_value: Array,
    cu_seqlens: Ints,
    past_lens: Ints,
    page_table: Ints,
    *,
    rope_dims: int,
    rope_theta: float,
    eps: float,
) -> tuple[Array, Array]:
    """The cache with the rows' entries written: k [T, KV * D] normed and rotated, v [T, KV * D] as it is."""
    page, heads, width = past_key.shape[1:]
    sequence, position = _positions(cu_seqlens, past_lens)
    pages, offsets = page_table[sequence, position // page], position % page
    key, value = past_key.copy(), past_value.copy()
    key[pages, offsets] = _norm_rotate(k.reshape(-1, heads, width), k_norm, position, rope_dims, rope_theta, eps)
    value[pages, offsets] = v.reshape(-1, heads, width)
    return key, value


def paged_attention(
    q_gate: Array,
    q_norm: Array,
    key: Array,
    value: Array,
    cu_seqlens: Ints,
    past_lens: Ints,
    page_table: Ints,
    *,
    rope_dims: int,
    rope_theta: float,
    eps: float,
) -> Array:
    """sigmoid(gate) * softmax(q k / sqrt(D)) v of q_gate [R, H * 2D], each head's [q | gate]: float32 [R, H * D].

    A row sees positions 0 to its own; query head h reads kv head h // (H / KV).
    """
    page, kv_heads, width = key.shape[1:]
    heads = q_gate.shape[1] // (2 * width)
    q_gate = q_gate.reshape(-1, heads, 2 * width)
    sequence, position = _positions(cu_seqlens, past_lens)
    q = _norm_rotate(q_gate[..., :width], q_norm, position, rope_dims, rope_theta, eps)
    gate = q_gate[..., width:].astype(np.float64)
    out = np.empty((len(q), heads, width), np.float32)
    for row, (s, last) in enumerate(zip(sequence, position, strict=True)):
        seen = np.arange(last + 1)
        entries = page_table[s, seen // page], seen % page
        k = np.repeat(key[entries].astype(np.float64), heads // kv_heads, 1)
        v = np.repeat(value[entries].astype(np.float64), heads // kv_heads, 1)
        scores = np.einsum("hd,phd->hp", q[row], k) / np.sqrt(width)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = np.einsum("hp,phd->hd", weights / weights.sum(-1, keepdims=True), v)
        out[row] = attended / (1 + np.exp(-gate[row]))
    return out.reshape(len(q), -1)
