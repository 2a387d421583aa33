"""What layers compute, in NumPy and float64, of T tokens of one sequence at a time; matrices are [outputs, inputs].

Mathematics of the mixer: Yang et al., "Gated Delta Networks" (arXiv 2412.06464).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trigraph.models import names
from trigraph.models.config import ModelConfig

Array: TypeAlias = npt.NDArray[np.float64]
Positions: TypeAlias = npt.NDArray[np.int64]
"""Positions of T tokens, by axis (time, row, column): [3, T]. Text has three equal ones."""
Rotation: TypeAlias = tuple[Array, Array]
"""Cosines and sines of rotary pairs, for each token."""
Weights: TypeAlias = Callable[[str], Array]
"""The tensors of one block, by the part of the name after the block's number."""
Past: TypeAlias = tuple[Array, ...]
"""What a mixer carries on. Attention: keys and values [P, kv heads, head dim] of the P tokens so far, keys normalised
and rotated. Gated DeltaNet: the last kernel - 1 columns before the convolution [kernel - 1, channels], and the state
[v heads, key, value]."""

# The smallest normal float16: keeps the division finite when no expert has any weight.
MIN_EXPERT_SUM = 6.103515625e-5


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # of exp far below 0, where 1 / inf is the 0 that it should be
        return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = e.sum(axis=-1, keepdims=True)
    return e / total


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    mean_square: Array = (x * x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + eps) * weight


def l2_norm(x: Array, eps: float) -> Array:
    square: Array = (x * x).sum(axis=-1, keepdims=True)
    return x / np.sqrt(square + eps)


def rotation(positions: Positions, c: ModelConfig, axes: npt.NDArray[np.int64]) -> Rotation:
    """Cosines and sines [T, 1, pairs] of tokens at `positions` [3, T]; `axes` [pairs] chooses one for each pair."""
    dims, scaling = c.rope_dims, c.rope_scaling
    frequency, magnitude = c.rope_theta ** (-np.arange(0, dims, 2) / dims), 1.0
    if scaling is not None:
        start, end = scaling.ramp(dims, c.rope_theta)
        slow = np.clip((np.arange(dims // 2) - start) / max(end - start, 0.001), 0, 1)
        frequency, magnitude = frequency * (1 - slow) + frequency / scaling.factor * slow, scaling.magnitude
    angle = (positions[axes].T * frequency)[:, None]
    return np.cos(angle) * magnitude, np.sin(angle) * magnitude


def rotate(x: Array, rotation: Rotation) -> Array:
    """Rotate the first dimensions of each head [T, heads, head dim]; element i is paired with i + pairs."""
    cos, sin = rotation
    pairs = cos.shape[-1]
    a, b, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def attention(
    x: Array, w: Weights, c: ModelConfig, past: Past, turn: Rotation, seen: npt.NDArray[np.bool_] | None = None
) -> tuple[Array, Past]:
    """Gated attention over the past and the tokens of x [T, hidden], causal by place; `seen` [T, P] limits it more."""
    tokens, start = len(x), len(past[0])
    q, gate = np.split((x @ w(names.ATTN_Q).T).reshape(tokens, c.heads, 2 * c.head_dim), 2, axis=-1)
    k = (x @ w(names.ATTN_K).T).reshape(tokens, c.kv_heads, c.head_dim)
    v = (x @ w(names.ATTN_V).T).reshape(tokens, c.kv_heads, c.head_dim)
    q = rotate(rms_norm(q, w(names.ATTN_Q_NORM), c.rms_eps), turn)
    k = rotate(rms_norm(k, w(names.ATTN_K_NORM), c.rms_eps), turn)
    k, v = np.concatenate([past[0], k]), np.concatenate([past[1], v])

    group = c.heads // c.kv_heads
    by_head = q.transpose(1, 0, 2), np.repeat(k, group, axis=1).transpose(1, 2, 0)
    scores = np.matmul(*by_head) / np.sqrt(c.head_dim)
    causal = np.arange(start + tokens) <= (start + np.arange(tokens))[:, None]
    scores = np.where(causal if seen is None else causal & seen, scores, -np.inf)
    weighted = softmax(scores) @ np.repeat(v, group, axis=1).transpose(1, 0, 2)
    out = weighted.transpose(1, 0, 2) * sigmoid(gate)
    return out.reshape(tokens, -1) @ w(names.ATTN_OUTPUT).T, (k, v)


def gated_delta_net(x: Array, w: Weights, c: ModelConfig, past: Past) -> tuple[Array, Past]:
    """Causal convolution and the gated delta rule over x [T, hidden], from the window and state in `past`."""
    tokens, k_heads, v_heads, dim = len(x), c.gdn_k_heads, c.gdn_v_heads, c.gdn_head_dim
    z = (x @ w(names.ATTN_GATE).T).reshape(tokens, v_heads, dim)
    if c.fused_beta_alpha:  # for each key head: its value heads' b, then their a
        ba = (x @ w(names.SSM_BA).T).reshape(tokens, k_heads, 2, v_heads // k_heads)
        b, a = ba[:, :, 0].reshape(tokens, v_heads), ba[:, :, 1].reshape(tokens, v_heads)
    else:
        b, a = x @ w(names.SSM_BETA).T, x @ w(names.SSM_ALPHA).T
    beta = sigmoid(b)
    log_decay = softplus(a + w(names.SSM_DT)) * w(names.SSM_A)  # ssm_a is -exp(A_log)

    columns = np.concatenate([past[0], x @ w(names.ATTN_QKV).T])
    taps = w(names.SSM_CONV1D)  # the last tap meets the current token
    qkv = silu(sum((columns[j : j + tokens] * taps[:, j] for j in range(c.conv_kernel)), np.zeros(())))
    q, k, v = np.split(qkv, [c.key_dim, 2 * c.key_dim], axis=-1)
    key_head = np.arange(v_heads) % k_heads if c.gdn_tiled else np.arange(v_heads) // (v_heads // k_heads)
    q = l2_norm(q.reshape(tokens, k_heads, dim), c.rms_eps)[:, key_head]
    k = l2_norm(k.reshape(tokens, k_heads, dim), c.rms_eps)[:, key_head]
    v = v.reshape(tokens, v_heads, dim)

    state = past[1].copy()
    out = np.empty_like(v)
    for t in range(tokens):
        state *= np.exp(log_decay[t])[:, None, None]
        delta = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
        state += k[t][:, :, None] * delta[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t]) / np.sqrt(dim)
    out = rms_norm(out, w(names.SSM_NORM), c.rms_eps) * (sigmoid(z) if c.sigmoid_gate else silu(z))
    return out.reshape(tokens, -1) @ w(names.SSM_OUT).T, (columns[tokens:], state)


def gated_mlp(x: Array, gate: Array, up: Array, down: Array) -> Array:
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def mixture_of_experts(x: Array, w: Weights, c: ModelConfig, fused: bool) -> Array:
    """The routed experts, each for the rows that chose it, plus the gated shared expert."""
    if fused:
        gate, up = np.split(w(names.FFN_GATE_UP_EXPS), 2, axis=1)
    else:
        gate, up = w(names.FFN_GATE_EXPS), w(names.FFN_UP_EXPS)
    down = w(names.FFN_DOWN_EXPS)
    probability = softmax(x @ w(names.FFN_GATE_INP).T)
    chosen = np.argsort(-probability, axis=-1, kind="stable")[:, : c.experts_used]
    scale = np.take_along_axis(probability, chosen, axis=-1)
    if c.normalize_experts:
        scale = scale / np.maximum(scale.sum(axis=-1, keepdims=True), MIN_EXPERT_SUM)
    out = np.zeros_like(x)
    for e in np.unique(chosen):
        rows, places = np.nonzero(chosen == e)
        out[rows] += scale[rows, places, None] * gated_mlp(x[rows], gate[e], up[e], down[e])
    shared = gated_mlp(x, w(names.FFN_GATE_SHEXP), w(names.FFN_UP_SHEXP), w(names.FFN_DOWN_SHEXP))
    return out + sigmoid(x @ w(names.FFN_GATE_INP_SHEXP))[:, None] * shared
