"""The gated delta rule of one step in NumPy, float64: convolution, unit keys and queries, recurrence.

Formulas: Gated Delta Networks (Yang, Kautz, Hatamizadeh, 2024), with the causal convolution, gates and norms of the
Qwen3-Next and Qwen3.5 models.
"""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def sigmoid(x: F64) -> F64:
    return np.exp(-np.logaddexp(0, -x))


def silu(x: F64) -> F64:
    return x * sigmoid(x)


def convolve(columns: F64, conv: F64) -> F64:
    """Causal depthwise convolution and SiLU: [3 + n, C] pre-conv columns, the first three history -> [n, C]."""
    n = len(columns) - 3
    return silu(sum((columns[j : j + n] * conv[:, j] for j in range(4)), np.zeros((n, columns.shape[1]))))


def split_heads(mixed: F64, k_heads: int, v_heads: int, tiled: bool, eps: float) -> tuple[F64, F64, F64]:
    """[n, C] -> q, k, v, each [n, v_heads, D], q and k of unit length (q divided by sqrt(D) too)."""
    dim = mixed.shape[1] // (2 * k_heads + v_heads)
    heads = mixed.reshape(len(mixed), -1, dim)
    q, k, v = heads[:, :k_heads], heads[:, k_heads : 2 * k_heads], heads[:, 2 * k_heads :]
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + eps) / np.sqrt(dim)
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + eps)
    head = np.arange(v_heads)
    k_head = head % k_heads if tiled else head // (v_heads // k_heads)
    return q[:, k_head], k[:, k_head], v


def delta_rule(state: F64, q: F64, k: F64, v: F64, log_decay: F64, beta: F64) -> tuple[F64, F64]:
    """Token by token: state [v, D, D], q, k, v [n, v, D], gates [n, v] -> outputs [n, v, D] and the last state."""
    out = np.zeros_like(v)
    for t in range(len(v)):
        # S = e^g S
        state = state * np.exp(log_decay[t])[:, None, None]
        # d = beta (v - S^T k)
        d = (v[t] - np.einsum("hij,hi->hj", state, k[t])) * beta[t][:, None]
        # S = S + k d^T
        state = state + k[t][:, :, None] * d[:, None, :]
        # o = S^T q
        out[t] = np.einsum("hij,hi->hj", state, q[t])
    return out, state
