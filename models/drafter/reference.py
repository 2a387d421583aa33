"""The forward pass of a block drafter in NumPy and float64: what graphs are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trigraph.models import names
from trigraph.models.drafter import tensors
from trigraph.models.drafter.drafter import PREFIX, BlockDrafter
from trigraph.models.model import Model
from trigraph.models.reference_layers import Array, gated_mlp, rms_norm, rotate, softmax

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BlockDraft:
    """What a block's rows draft."""

    logits: Array
    """[B, rows of the output matrix]."""
    candidates: Ids
    """Tokens [B, C], the one with the largest logit first."""
    edges: Array
    """[B, C, C]: the score of a candidate (last) after each candidate of the row before. In dflash [B, 1, C]."""

    def walk(self, first: int) -> list[int]:
        """The best token of each row from the `first` on, given the one chosen before it."""
        tokens, before = list[int](), 0
        for candidates, edges in zip(self.candidates[first:], self.edges[first:], strict=True):
            best = int(edges[min(before, len(edges) - 1)].argmax())
            tokens.append(int(candidates[best]))
            before = best
        return tokens


class DrafterReference:
    """A drafter that follows one sequence of its model."""

    def __init__(self, drafter: BlockDrafter, model: Model) -> None:
        self.config, self._drafter, self._model = drafter.config, drafter, model
        self._weights: dict[str, Array] = {}
        c = drafter.config
        self.keys = [np.zeros((0, c.kv_heads, c.head_dim)) for _ in range(c.layers)]
        """Keys of the context, for each layer."""
        self.values = [key.copy() for key in self.keys]
        output = names.TOKEN_EMBD if model.config.tied else names.OUTPUT
        self._head = self._own(names.OUTPUT, output)
        self._embedding = self._own(names.TOKEN_EMBD, names.TOKEN_EMBD)

    @property
    def length(self) -> int:
        """Positions of the context."""
        return len(self.keys[0])

    def extend(self, features: Array) -> None:
        """Append positions to the context: what enters the tapped layers, side by side [T, taps x hidden]."""
        x = rms_norm(features @ self._w(tensors.FC).T, self._w(tensors.CONTEXT_NORM), self.config.rms_eps)
        at = self.length + np.arange(len(x))
        for layer in range(self.config.layers):
            key, value = self._key_value(layer, x, at)
            self.keys[layer] = np.concatenate([self.keys[layer], key])
            self.values[layer] = np.concatenate([self.values[layer], value])

    def cut(self, length: int) -> None:
        """Forget the positions from `length` on."""
        self.keys = [key[:length] for key in self.keys]
        self.values = [value[:length] for value in self.values]

    def draft(self, token: int, rows: int) -> BlockDraft:
        """The draft of a block of `rows` after the context: the known token, then masks."""
        c = self.config
        ids = np.array([token] + [c.mask] * (rows - 1))
        x = self._embedding[ids]
        for layer in range(c.layers):
            x = x + self._half(layer, "attn", names.ATTN_NORM, x, self._attention)
            x = x + self._half(layer, "ffn", tensors.FFN_NORM, x, self._feed_forward)
        hidden = rms_norm(x, self._w(names.OUTPUT_NORM), c.rms_eps)
        logits = hidden @ self._head.T * c.logit_scale
        if c.logit_cap:
            logits = np.tanh(logits / c.logit_cap) * c.logit_cap
        best = np.argsort(-logits, axis=-1, kind="stable")[:, : c.candidates]
        tokens = best if self._drafter.tokens is None else self._drafter.tokens[best]
        return BlockDraft(logits, tokens, self._edges(hidden, logits, best, tokens, token))

    def _edges(self, hidden: Array, logits: Array, best: Ids, tokens: Ids, known: int) -> Array:
        c = self.config
        scores: Array = np.take_along_axis(logits, best, axis=-1)[:, None]
        if c.kind == "dflash":
            return scores
        first = 0 if c.from_anchor else 1
        before = np.concatenate([np.full((first + 1, c.candidates), known), tokens[first:-1]])[: len(tokens)]
        if c.kind == "dspark":
            left, right = self._w(tensors.MARKOV_W1)[before], self._w(tensors.MARKOV_W2)[best]
        else:
            gate = hidden @ self._w(tensors.SELECTOR_HIDDEN).T
            left = self._w(tensors.SELECTOR_PREDECESSOR)[before] * gate[:, None]
            right = self._w(tensors.SELECTOR_SUCCESSOR)[tokens]
        pairs: Array = left @ right.transpose(0, 2, 1)
        return scores + pairs

    def _half(self, layer: int, half: str, norm: str, x: Array, inner: Callable[[int, Array], Array]) -> Array:
        """Attention or feed-forward. In dflash2, input and output are convolved, with kernels made from the input."""
        c = self.config
        normed = rms_norm(x, self._w(names.in_block(layer, norm)), c.rms_eps)
        if c.kind != "dflash2":
            return inner(layer, normed)
        kernels = normed @ self._w(names.in_block(layer, tensors.CONV_PROJ[half])).T
        kernels = np.repeat(kernels.reshape(len(x), 2 * c.conv_kernel, -1), c.conv_group, axis=-1)
        kernels = kernels + self._w(names.in_block(layer, tensors.CONV_BASE[half]))
        kernels = kernels.reshape(len(x), 2, c.conv_kernel, c.hidden)
        return _convolved(inner(layer, _convolved(normed, kernels[:, 0])), kernels[:, 1])

    def _feed_forward(self, layer: int, x: Array) -> Array:
        gate, up, down = (
            self._w(names.in_block(layer, weight)) for weight in (names.FFN_GATE, names.FFN_UP, names.FFN_DOWN)
        )
        return gated_mlp(x, gate, up, down)

    def _attention(self, layer: int, x: Array) -> Array:
        c, at = self.config, self.length + np.arange(len(x))
        query = (x @ self._w(names.in_block(layer, names.ATTN_Q)).T).reshape(len(x), c.heads, c.head_dim)
        query = self._turned(rms_norm(query, self._w(names.in_block(layer, names.ATTN_Q_NORM)), c.rms_eps), at)
        key, value = self._key_value(layer, x, at)
        key, value = np.concatenate([self.keys[layer], key]), np.concatenate([self.values[layer], value])
        places = np.arange(len(key))
        seen = np.ones((len(x), len(key)), bool)
        if c.sliding[layer]:
            start = np.maximum(0, at - c.window + 1)
            seen &= places >= start[:, None]
        if c.causal[layer]:
            seen &= places <= at[:, None]
        shared = c.heads // c.kv_heads
        scores = np.einsum("qhd,khd->hqk", query, np.repeat(key, shared, 1)) / np.sqrt(c.head_dim)
        weights = softmax(np.where(seen, scores, -np.inf))
        mixed: Array = np.einsum("hqk,khd->qhd", weights, np.repeat(value, shared, 1))
        return mixed.reshape(len(x), -1) @ self._w(names.in_block(layer, names.ATTN_OUTPUT)).T

    def _key_value(self, layer: int, x: Array, at: Ids) -> tuple[Array, Array]:
        c = self.config
        key, value = (
            (x @ self._w(names.in_block(layer, weight)).T).reshape(len(x), c.kv_heads, c.head_dim)
            for weight in (names.ATTN_K, names.ATTN_V)
        )
        return self._turned(rms_norm(key, self._w(names.in_block(layer, names.ATTN_K_NORM)), c.rms_eps), at), value

    def _turned(self, heads: Array, at: Ids) -> Array:
        pairs = self.config.rope_dims // 2
        angles = at[:, None, None] * self.config.rope_theta ** (-np.arange(pairs) / pairs)
        return rotate(heads, (np.cos(angles), np.sin(angles)))

    def _w(self, name: str) -> Array:
        if name not in self._weights:
            self._weights[name] = self._drafter.array(PREFIX + name).astype(np.float64)
        return self._weights[name]

    def _own(self, own: str, models: str) -> Array:
        """The drafter's tensor where it has one, else the model's."""
        return self._w(own) if PREFIX + own in self._drafter.tensors else self._model.array(models).astype(np.float64)


def _convolved(x: Array, kernels: Array) -> Array:
    """The sum of each row and those before it, times `kernels` [B, conv_kernel, hidden]. Zeros precede a block."""
    out = np.zeros_like(x)
    for tap in range(min(kernels.shape[1], len(x))):
        out[tap:] += kernels[tap:, tap] * x[: len(x) - tap]
    return out
