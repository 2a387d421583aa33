"""The forward pass in NumPy and float64: the specification that graphs and kernels are compared with.

T tokens of one sequence at a time; matrices are [outputs, inputs]. Mathematics of the mixer: Yang et al., "Gated Delta
Networks" (arXiv 2412.06464).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trigraph.models import names
from trigraph.models.config import ModelConfig
from trigraph.models.errors import TrigraphError
from trigraph.models.model import Model
from trigraph.models.rope_positions import axes_of_pairs, rope_sections

Array: TypeAlias = npt.NDArray[np.float64]
Tokens: TypeAlias = Sequence[int] | npt.NDArray[np.integer]
Positions: TypeAlias = npt.NDArray[np.int64]
"""Of T tokens, by axis (time, row, column): [3, T]. Text has three equal ones."""
Shown: TypeAlias = tuple[Array | None, Positions | None]
"""Rows of images, and positions, of tokens that are not text alone."""
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
    return np.exp(-np.logaddexp(0, -x))


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
    scores = np.einsum("qhd,phd->hqp", q, np.repeat(k, group, axis=1)) / np.sqrt(c.head_dim)
    causal = np.arange(start + tokens) <= (start + np.arange(tokens))[:, None]
    scores = np.where(causal if seen is None else causal & seen, scores, -np.inf)
    out = np.einsum("hqp,phd->qhd", softmax(scores), np.repeat(v, group, axis=1)) * sigmoid(gate)
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
    """The routed experts in the order of their weight, plus the gated shared expert."""
    if fused:
        gate, up = np.split(w(names.FFN_GATE_UP_EXPS), 2, axis=1)
    else:
        gate, up = w(names.FFN_GATE_EXPS), w(names.FFN_UP_EXPS)
    down = w(names.FFN_DOWN_EXPS)
    probability = softmax(x @ w(names.FFN_GATE_INP).T)
    out = np.zeros_like(x)
    for t, p in enumerate(probability):
        chosen = np.argsort(-p, kind="stable")[: c.experts_used]
        scale = p[chosen] / max(p[chosen].sum(), MIN_EXPERT_SUM) if c.normalize_experts else p[chosen]
        for s, e in zip(scale, chosen, strict=True):
            out[t] += s * gated_mlp(x[t], gate[e], up[e], down[e])
    shared = gated_mlp(x, w(names.FFN_GATE_SHEXP), w(names.FFN_UP_SHEXP), w(names.FFN_DOWN_SHEXP))
    return out + sigmoid(x @ w(names.FFN_GATE_INP_SHEXP))[:, None] * shared


@dataclass
class State:
    """The past of each block of one sequence. A call that gets one advances it."""

    past: dict[int, Past] = field(default_factory=dict)
    next_position: int = 0
    """Of the next token, if it is text: the number of tokens so far, or less where images were among them."""

    def copy(self) -> State:
        """An independent state; it shares the arrays, which no call writes into."""
        return State(dict(self.past), self.next_position)


class Reference:
    """The forward pass of a model, weights in float64. Without a `state`, a call starts a new sequence.

    `image_rows` [I, hidden] are embeddings of images: token vocab + i is row i of them. `positions` default to those of
    text, which goes on where the state ends.
    """

    def __init__(self, model: Model) -> None:
        """Raises TrigraphError when the sections of the file's rotary dimensions are damaged."""
        self.model, self.config = model, model.config
        self._axes = axes_of_pairs(model.config.rope_dims // 2, rope_sections(model.file, model.config))
        self._weights: dict[str, Array] = {}

    def trunk(
        self,
        tokens: Tokens,
        state: State | None = None,
        *,
        image_rows: Array | None = None,
        positions: Positions | None = None,
    ) -> tuple[Array, Array]:
        """Hidden states after the output norm [T, hidden] and logits [T, vocab]."""
        state, x, turn = self._begin(self._tensor(names.TOKEN_EMBD), tokens, state, (image_rows, positions))
        for layer, recurrent in enumerate(self.config.recurrent):
            x = self._block(layer, recurrent, x, state, turn)
        hidden = rms_norm(x, self._tensor(names.OUTPUT_NORM), self.config.rms_eps)
        return hidden, hidden @ self._output().T

    def mtp(
        self,
        tokens: Tokens,
        previous: Array,
        state: State | None = None,
        *,
        image_rows: Array | None = None,
        positions: Positions | None = None,
    ) -> tuple[Array, Array]:
        """The MTP head: its hidden rows after the head's norm, as those of `trunk`, and logits [T, vocab].

        `previous` is the hidden row of the token before each: the trunk's (zeros before the first token of a sequence),
        or the head's own where drafts are chained.
        """
        if not self.config.mtp_layers:
            raise TrigraphError(f"{self.model.file.paths[0]}: has no MTP head; give the file that holds it")
        table = self._first(names.in_block(self.config.trunk_layers, names.NEXTN_EMBED_TOKENS), names.TOKEN_EMBD)
        state, embedded, turn = self._begin(table, tokens, state, (image_rows, positions))
        return self._head(embedded, previous, state, turn)

    def draft(
        self, tokens: Tokens, previous: Array, count: int, state: State | None = None
    ) -> tuple[npt.NDArray[np.int64], Array]:
        """`count` greedy drafts after `tokens` [count], and their logits [count, vocab].

        `tokens` and `previous` are as in `mtp`. A `state` is advanced by `tokens` only: keys and values made from the
        head's own hidden states are dropped.
        """
        state = State() if state is None else state
        hidden, logits = self.mtp(tokens, previous, state)
        chain = state.copy()
        rows = [logits[-1]]
        while len(rows) < count:
            hidden, logits = self.mtp([int(rows[-1].argmax())], hidden[-1:], chain)
            rows.append(logits[-1])
        all_logits = np.stack(rows[:count])
        return all_logits.argmax(axis=-1), all_logits

    def _begin(self, table: Array, tokens: Tokens, state: State | None, shown: Shown) -> tuple[State, Array, Rotation]:
        """The state that the tokens advance, their embeddings, and their rotation."""
        own, (image_rows, positions) = State() if state is None else state, shown
        return own, self._embed(table, tokens, image_rows), self._advance(len(tokens), own, positions)

    def _head(self, embedded: Array, previous: Array, state: State, turn: Rotation) -> tuple[Array, Array]:
        layer, eps = self.config.trunk_layers, self.config.rms_eps
        w = self._block_weights(layer)
        pair = [rms_norm(embedded, w(names.NEXTN_ENORM), eps), rms_norm(previous, w(names.NEXTN_HNORM), eps)]
        x = np.concatenate(pair, axis=-1) @ w(names.NEXTN_EH_PROJ).T
        x = self._block(layer, False, x, state, turn)
        norm = self._first(names.in_block(layer, names.NEXTN_SHARED_HEAD_NORM), names.OUTPUT_NORM)
        hidden = rms_norm(x, norm, eps)
        return hidden, hidden @ self._output(names.in_block(layer, names.NEXTN_SHARED_HEAD_HEAD)).T

    def _embed(self, table: Array, tokens: Tokens, image_rows: Array | None) -> Array:
        ids = np.asarray(tokens)
        rows: Array = table[ids if image_rows is None else np.minimum(ids, len(table) - 1)]
        if image_rows is not None:
            rows[ids >= len(table)] = image_rows[ids[ids >= len(table)] - len(table)]
        return rows

    def _advance(self, tokens: int, state: State, positions: Positions | None) -> Rotation:
        """The rotation of the next tokens; the state's position goes behind them."""
        if positions is None:
            positions = np.tile(state.next_position + np.arange(tokens), (3, 1))
        state.next_position = int(positions[:, -1].max()) + 1
        return rotation(positions, self.config, self._axes)

    def _block(self, layer: int, recurrent: bool, x: Array, state: State, turn: Rotation) -> Array:
        c, w = self.config, self._block_weights(layer)
        past = state.past.get(layer) or self._empty_past(recurrent)
        y = rms_norm(x, w(names.ATTN_NORM), c.rms_eps)
        if recurrent:
            mixed, state.past[layer] = gated_delta_net(y, w, c, past)
        else:
            mixed, state.past[layer] = attention(y, w, c, past, turn)
        x = x + mixed
        y = rms_norm(x, w(names.POST_ATTENTION_NORM), c.rms_eps)
        if c.experts:
            fused = self.model.find(names.in_block(layer, names.FFN_GATE_UP_EXPS)) is not None
            return x + mixture_of_experts(y, w, c, fused)
        return x + gated_mlp(y, w(names.FFN_GATE), w(names.FFN_UP), w(names.FFN_DOWN))

    def _empty_past(self, recurrent: bool) -> Past:
        c = self.config
        if recurrent:
            window = np.zeros((c.conv_kernel - 1, c.gdn_channels))
            return window, np.zeros((c.gdn_v_heads, c.gdn_head_dim, c.gdn_head_dim))
        return np.zeros((0, c.kv_heads, c.head_dim)), np.zeros((0, c.kv_heads, c.head_dim))

    def _tensor(self, name: str) -> Array:
        if name not in self._weights:
            self._weights[name] = self.model.array(name).astype(np.float64)
        return self._weights[name]

    def _block_weights(self, layer: int) -> Weights:
        return lambda name: self._tensor(names.in_block(layer, name))

    def _first(self, *names: str) -> Array:
        """The first of these tensors that the model has."""
        return self._tensor(next(name for name in names if self.model.find(name) is not None))

    def _output(self, *preferred: str) -> Array:
        return self._first(*preferred, names.OUTPUT, names.TOKEN_EMBD)
