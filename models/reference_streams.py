"""The forward pass of models with residual streams, in NumPy and float64: what reference.py has is used, not repeated.

Streams are [T, count, hidden]; sums of them run over `count`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trigraph.models import names
from trigraph.models.config import ModelConfig
from trigraph.models.errors import TrigraphError
from trigraph.models.model import Model
from trigraph.models.reference import Reference, Shown, State, Tokens
from trigraph.models.reference_layers import (
    Array,
    Past,
    Positions,
    Rotation,
    Weights,
    attention,
    gated_delta_net,
    mixture_of_experts,
    rms_norm,
    rotate,
    rotation,
    sigmoid,
    silu,
)
from trigraph.models.streams import Ngrams, Streams, ngram_rows


@dataclass
class StreamState(State):
    """The past of a sequence, with that of its n-grams. Attention's past has the indexer's raw keys [P, dim] too."""

    last: list[int] = field(default_factory=list)
    """The tokens that an n-gram of the next one may hold."""
    columns: Array | None = None
    """What the n-grams' convolution reads of earlier tokens: [history, count x hidden]."""

    def copy(self) -> StreamState:
        """An independent state; it shares the arrays, which no call writes into."""
        return StreamState(dict(self.past), self.next_position, self.last.copy(), self.columns)


def stream_norm(x: Array, weight: Array, eps: float) -> Array:
    """Each stream's own norm; the weight [count x hidden] has one for each."""
    return rms_norm(x, weight.reshape(x.shape[-2:]), eps)


def mix(x: Array, weights: list[Array], c: ModelConfig) -> tuple[Array, Array]:
    """One row [T, hidden] of the streams, and the factors [T, count] with which its result goes back into them.

    `weights`: norm, down, up, and inject where something goes back.
    """
    norm, down, up, *inject = weights
    normed = stream_norm(x, norm, c.rms_eps)
    tokens, count, _ = normed.shape
    flat = normed.reshape(tokens, -1)
    gate = sigmoid(silu(flat @ down.T / count) @ up.T).reshape(normed.shape)
    factors = 2 * sigmoid(flat @ inject[0].T / count) if inject else np.zeros((tokens, count))
    return (gate * normed).mean(axis=1), factors


def add_ngrams(
    x: Array, rows: Array, w: Weights, c: ModelConfig, ngrams: Ngrams, columns: Array
) -> tuple[Array, Array]:
    """Streams with what rows of the table [T, hidden] add to them, and the convolution's columns for later tokens."""
    tokens, count, hidden = x.shape
    key = stream_norm((rows @ w(names.PLE_KEY).T).reshape(x.shape), w(names.PLE_NORM_KEY), c.rms_eps)
    query = stream_norm(x, w(names.PLE_NORM_QUERY), c.rms_eps)
    score = (key * query).sum(axis=-1) / np.sqrt(hidden)
    gate = sigmoid(np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6)))
    value = gate[..., None] * (rows @ w(names.PLE_VALUE).T)[:, None]
    own = stream_norm(value, w(names.PLE_NORM_CONV), c.rms_eps).reshape(tokens, -1)
    columns, taps = np.concatenate([columns, own]), w(names.PLE_CONV1D)
    convolved = sum(
        (columns[j * ngrams.size : j * ngrams.size + tokens] * taps[:, j] for j in range(ngrams.conv_kernel)),
        np.zeros((tokens, count * hidden)),
    )
    return x + value + silu(convolved).reshape(x.shape), columns[tokens:]


def best_groups(scores: Array, top: int) -> npt.NDArray[np.int64]:
    """The numbers of the `top` groups that score best, the best first; of equal ones the first."""
    return np.argsort(-scores, kind="stable")[:top]


def seen_positions(
    x: Array, raw: Array, w: Weights, c: ModelConfig, streams: Streams, turn: Rotation, of_groups: Rotation
) -> npt.NDArray[np.bool_]:
    """Which of P places each of the last T rows sees [T, P]: those of its best groups, and those after the last group.

    `raw` [P, dim] are the indexer's keys of all places, `of_groups` the rotation of each whole group's first place.
    """
    indexer, tokens, places = streams.indexer, len(x), len(raw)
    groups = places // indexer.group
    pooled = raw[: groups * indexer.group].reshape(groups, indexer.group, raw.shape[1]).mean(axis=1)
    keys = rotate(rms_norm(pooled, w(names.INDEXER_K_NORM), c.rms_eps)[:, None], of_groups)[:, 0]
    queries = (x @ w(names.INDEXER_Q).T).reshape(tokens, indexer.heads, indexer.head_dim)
    queries = rotate(rms_norm(queries, w(names.INDEXER_Q_NORM), c.rms_eps), turn)
    scores = np.maximum(queries @ keys.T, 0).sum(axis=1)
    seen = np.zeros((tokens, places), bool)
    for row, place in enumerate(range(places - tokens, places)):
        whole = (place + 1) // indexer.group
        chosen = best_groups(scores[row, :whole], indexer.top)
        seen[row, (chosen[:, None] * indexer.group + np.arange(indexer.group)).reshape(-1)] = True
        seen[row, whole * indexer.group : place + 1] = True
    return seen


class StreamReference(Reference):
    """The forward pass of a model with residual streams. Hidden rows are the streams side by side [T, count x hidden].

    `whole_hnorm`: the MTP head norms the streams before it as one row, as SGLang and vLLM do; otherwise each by itself,
    as llama.cpp b11549 does. Images are not read.
    """

    def __init__(self, model: Model, *, whole_hnorm: bool = True) -> None:
        """Raises TrigraphError for a model without streams."""
        super().__init__(model)
        if model.config.streams is None:
            raise TrigraphError(f"{model.file.paths[0]}: has one residual stream; use Reference")
        self.streams, self.whole_hnorm = model.config.streams, whole_hnorm

    def trunk(
        self,
        tokens: Tokens,
        state: State | None = None,
        *,
        image_rows: Array | None = None,
        positions: Positions | None = None,
    ) -> tuple[Array, Array]:
        """The streams after the last layer [T, count x hidden], and logits [T, vocab]."""
        state, embedded, turn = self._begin(self._tensor(names.TOKEN_EMBD), tokens, state, (image_rows, positions))
        x = np.repeat(embedded[:, None], self.streams.count, axis=1)
        for layer, recurrent in enumerate(self.config.recurrent):
            if self.streams.ngrams is not None and layer == self.streams.ngrams.layer:
                x = self._add_ngrams(x, self.streams.ngrams, tokens, state)
            x = self._streams_block(layer, recurrent, x, state, turn)
        row, _ = mix(x, [self._tensor(name) for name in names.OUTPUT_MIXER], self.config)
        return x.reshape(len(x), -1), row @ self._output().T

    def _head(self, embedded: Array, previous: Array, state: State, turn: Rotation) -> tuple[Array, Array]:
        assert isinstance(state, StreamState)  # as _begin returned it
        c, layer = self.config, self.config.trunk_layers
        w = self._block_weights(layer)
        shape, weight = (len(previous), self.streams.count, c.hidden), w(names.NEXTN_HNORM)
        if self.whole_hnorm:
            before = rms_norm(previous, weight, c.rms_eps).reshape(shape)
        else:
            before = stream_norm(previous.reshape(shape), weight, c.rms_eps)
        row = np.broadcast_to(rms_norm(embedded, w(names.NEXTN_ENORM), c.rms_eps)[:, None], shape)
        x = np.concatenate([row, before], axis=-1) @ w(names.NEXTN_EH_PROJ).T
        x = self._streams_block(layer, False, x, state, turn)
        row, _ = mix(x, [w(name) for name in names.HEAD_MIXER], c)
        return x.reshape(len(x), -1), row @ self._output().T

    def _begin(
        self, table: Array, tokens: Tokens, state: State | None, shown: Shown
    ) -> tuple[StreamState, Array, Rotation]:
        if any(part is not None for part in shown):
            raise TrigraphError("the reference of residual streams reads text alone; give no images and no positions")
        own = StreamState() if state is None else state
        if not isinstance(own, StreamState):
            raise TrigraphError("the state is one of models without residual streams; give a StreamState")
        return own, self._embed(table, tokens, None), self._advance(len(tokens), own, None)

    def _add_ngrams(self, x: Array, ngrams: Ngrams, tokens: Tokens, state: StreamState) -> Array:
        ids = [int(token) for token in tokens]
        rows = self.model.rows(names.NGRAM_TABLE, np.array(ngram_rows(ngrams, ids, state.last))).astype(np.float64)
        columns = state.columns
        if columns is None:
            columns = np.zeros((ngrams.history, self.config.residual))
        w = self._block_weights(ngrams.layer)
        x, state.columns = add_ngrams(x, rows.reshape(len(ids), -1), w, self.config, ngrams, columns)
        state.last = [*state.last, *ids][1 - ngrams.size :]
        return x

    def _streams_block(self, layer: int, recurrent: bool, x: Array, state: State, turn: Rotation) -> Array:
        c, w = self.config, self._block_weights(layer)
        past = state.past.get(layer) or self._empty_past(recurrent)
        row, factors = mix(x, [w(name) for name in names.mixer(names.HC_ATTN)], c)
        if recurrent:
            mixed, state.past[layer] = gated_delta_net(row, w, c, past)
        else:
            mixed, state.past[layer] = self._sparse_attention(row, w, past, turn)
        x = x + factors[..., None] * mixed[:, None]
        row, factors = mix(x, [w(name) for name in names.mixer(names.HC_FFN)], c)
        fused = self.model.find(names.in_block(layer, names.FFN_GATE_UP_EXPS)) is not None
        return x + factors[..., None] * mixture_of_experts(row, w, c, fused)[:, None]

    def _sparse_attention(self, x: Array, w: Weights, past: Past, turn: Rotation) -> tuple[Array, Past]:
        own = x @ w(names.INDEXER_K).T
        raw = np.concatenate([past[2], own]) if len(past) == 3 else own
        firsts = np.arange(0, len(raw) - self.streams.indexer.group + 1, self.streams.indexer.group)
        of_groups = rotation(np.tile(firsts, (3, 1)), self.config, self._axes)
        seen = seen_positions(x, raw, w, self.config, self.streams, turn, of_groups)
        out, (keys, values) = attention(x, w, self.config, past[:2], turn, seen)
        return out, (keys, values, raw)


def reference_of(model: Model) -> Reference:
    """The reference that computes a model."""
    return Reference(model) if model.config.streams is None else StreamReference(model)
