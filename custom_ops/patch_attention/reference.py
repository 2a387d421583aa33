"""What PatchAttention computes, in NumPy.

N patches of one or more images laid end to end, image s from cu_seqlens[s] to cu_seqlens[s + 1]; H heads of width W.
Queries and keys are turned by the patch's place (row, column): pairs (i, i + W / 2), the first W / 4 of them by the
row and the others by the column, both with theta^(-2 j / (W / 2)) for j from 0 to W / 4 - 1.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def patch_attention(qkv: Floats, places: Ints, cu_seqlens: Ints, *, heads: int, rope_theta: float) -> Floats:
    """softmax(q k / sqrt(W)) v of qkv [N, 3 * H * W] (queries, keys, values) at places [2, N]: float32 [N, H * W].

    A patch sees every patch of its image, and none of another one.
    """
    q, k, v = qkv.astype(np.float64).reshape(len(qkv), 3, heads, -1).transpose(1, 2, 0, 3)
    width = q.shape[-1]
    frequency = float(rope_theta) ** (-2.0 * np.arange(width // 4) / (width // 2))
    angle = np.concatenate([place[:, None] * frequency for place in places], -1)
    cosine, sine = np.cos(angle), np.sin(angle)

    def turned(x: NDArray[np.float64]) -> NDArray[np.float64]:
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    q, k = turned(q) / np.sqrt(width), turned(k)
    y = np.empty_like(v)
    for start, end in pairwise(cu_seqlens):
        scores = q[:, start:end] @ k[:, start:end].transpose(0, 2, 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y[:, start:end] = weights / weights.sum(-1, keepdims=True) @ v[:, start:end]
    return y.transpose(1, 0, 2).reshape(len(qkv), -1).astype(np.float32)
