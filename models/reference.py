"""The forward pass in NumPy and float64: the specification that graphs and kernels are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trigraph.models import names
from trigraph.models.errors import TrigraphError
from trigraph.models.model import Model
from trigraph.models.reference_layers import (
    Array,
    Past,
    Positions,
    Rotation,
    Weights,
    attention,
    gated_delta_net,
    gated_mlp,
    mixture_of_experts,
    rms_norm,
    rotation,
)
from trigraph.models.rope_positions import axes_of_pairs, rope_sections

Tokens: TypeAlias = Sequence[int] | npt.NDArray[np.integer]
Shown: TypeAlias = tuple[Array | None, Positions | None]
"""Rows of images, and positions, of tokens that are not text alone."""


@dataclass
class State:
    """The past of each block of one sequence. A call that gets one advances it."""

    past: dict[int, Past] = field(default_factory=dict)
    next_position: int = 0
    """The next token's position, if it is text: the number of tokens so far, or less where images were among them."""

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
