"""GatedDeltaNet as LinearAttention over the tokens that a step commits, then over its own.

Both calls see sequences of one length. Tokens that are not there have a log-decay and a beta of zero, which leave a
state as it is, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trigraph.runtime.device.webgpu.lowering.builder import MICROSOFT, Builder
from trigraph.runtime.device.webgpu.lowering.rows import Rows, as_int64, starts_and_ends

_HISTORY = 3  # tokens before the ones that a convolution makes


class Recurrence:
    """Which rows and slots belong to which sequence: index tensors that all layers share."""

    def __init__(self, b: Builder, rows: Rows, pending: int) -> None:
        """`pending`: K, the most tokens of a sequence in a verify."""
        starts, ends = starts_and_ends(b)
        last = b.op("Sub", rows.count, b.ints(1))
        own, first = b.op("Sub", ends, starts), b.op("Unsqueeze", starts, b.ints(1))
        length = b.op("ReduceMax", own, keepdims=0)
        places, pending_places = b.op("Range", b.number(0), length, b.number(1)), b.constant(np.arange(pending))
        own, accepted = (b.op("Unsqueeze", of, b.ints(1)) for of in (own, as_int64(b, "accepted")))

        def masks(places: str, counts: str) -> str:
            return b.op("Unsqueeze", b.op("Less", b.op("Unsqueeze", places, b.ints(0)), counts), b.ints(2))

        def history(counts: str) -> str:
            return b.op("Unsqueeze", b.op("Add", counts, b.constant(np.arange(_HISTORY))), b.ints(2))

        self.rows = b.op("Min", b.op("Add", first, places), last)
        """int64 [S, L]: each sequence's rows, of which it has at most L."""
        self.there = masks(places, own)
        """bool [S, L, 1]: whether it has so many."""
        self.pending_rows = b.op("Min", b.op("Add", first, pending_places), last)
        """int64 [S, K]: its first rows, which a next step may commit."""
        self.pending_there, self.kept = masks(pending_places, own), masks(pending_places, accepted)
        """bool [S, K, 1]: whether there are so many; whether so many of the last verify are committed."""
        self.after_commit, self.after_own = history(accepted), history(own)
        """int64 [S, 3, 1]: the last columns behind these tokens."""
        sequences, row_places = rows.places
        self.back = b.op("Add", b.op("Mul", sequences, length), row_places)
        """int64 [padded T]: where a row lies among [S * L] ones."""
        fresh = b.op("Equal", as_int64(b, "past_lens"), b.number(0))
        self.fresh = {rank: b.op("Unsqueeze", fresh, b.ints(*range(1, rank))) for rank in (3, 4)}
        """bool [S, 1, 1, ...], by rank: whether a sequence begins."""
        self.slots_out = b.op("Unsqueeze", as_int64(b, "slots_out"), b.ints(1))


class GatedDeltaNet:
    """One layer."""

    def __init__(self, b: Builder, recurrence: Recurrence, inputs: list[str], attributes: dict[str, Any]) -> None:
        self._b, self._recurrence, self._attributes = b, recurrence, attributes
        self._qkv, self._z, self._alpha, self._beta, conv, self._dt, self._a, self._norm = inputs[:8]
        self._state, self._window, self._gates = inputs[8:11]
        (channels, taps), self._heads, self._dim = b.dims(conv), b.dims(self._dt)[0], b.dims(self._norm)[0]
        self._conv = b.vector(conv, channels, 1, taps)
        self._zero = b.constant(np.array(0, np.float32))

    def lower(self, outputs: list[str]) -> None:
        """Adds the nodes that make rows, state, window and gates."""
        b, r, commit = self._b, self._recurrence, self._attributes["commit"]
        mixed, *written = outputs
        window, gates = b.op("Gather", self._window, "slots_in"), b.op("Gather", self._gates, "slots_in")
        window = b.op("Where", r.fresh[3], self._zero, window)
        state = b.op("Where", r.fresh[4], self._zero, b.op("Gather", self._state, "slots_in"))
        history, columns = (
            b.op("Slice", window, b.ints(first), b.ints(end), b.ints(1)) for first, end in ((0, 3), (3, 1 << 31))
        )
        _, committed = self._rule(columns, history, state, gates, r.kept)
        history = b.op("GatherND", window, r.after_commit, batch_dims=1)
        own_gates = self._own_gates()
        columns = b.op("Gather", self._qkv, r.rows)
        out, state = self._rule(columns, history, committed, b.op("Gather", own_gates, r.rows), r.there)
        self._gated(out, mixed)
        if commit:
            history = b.op("GatherND", b.op("Concat", history, columns, axis=1), r.after_own, batch_dims=1)
        pending = b.op("Gather", self._qkv, r.pending_rows)
        # What was read stays in places of no token, so that the write comes after the read of the same memory.
        new_gates = b.op("Where", r.pending_there, b.op("Gather", own_gates, r.pending_rows), gates)
        rows = state if commit else committed, b.op("Concat", history, pending, axis=1), new_gates
        for past, row, out in zip((self._state, self._window, self._gates), rows, written, strict=True):
            b.op("ScatterND", past, r.slots_out, row, out=out)

    def _own_gates(self) -> str:
        """Log-decay and beta of the step's rows, [T, 2 heads]."""
        b = self._b
        projections = [b.op("Unsqueeze", value, b.ints(0)) for value in (self._alpha, self._beta)]
        inputs = projections[0], b.vector(self._dt), b.vector(self._a), projections[1]
        made = b.ops("LinearAttentionGate", *inputs, outs=b.names(2), domain=MICROSOFT)
        return b.op("Squeeze", b.op("Concat", *made, axis=2), b.ints(0))

    def _rule(self, columns: str, history: str, state: str, gates: str, there: str) -> tuple[str, str]:
        """Rows [S, L, heads * D] and the state behind the tokens that are `there`, of columns [S, L, channels]."""
        b, key_heads = self._b, self._attributes["k_heads"]
        columns, gates = (b.op("Where", there, value, self._zero) for value in (columns, gates))
        decay, beta = b.ops("Split", gates, outs=b.names(2), axis=2, num_outputs=2)
        mixed, _ = b.ops(
            "CausalConvWithState",
            *(columns, self._conv, "", history),
            outs=b.names(2),
            domain=MICROSOFT,
            activation="silu",
            channels_last=1,
        )
        sizes = b.ints(*[key_heads * self._dim] * 2, self._heads * self._dim)
        query, key, value = b.ops("Split", mixed, sizes, outs=b.names(3), axis=2)
        out, after = b.ops(
            "LinearAttention",
            *(self._unit(query), self._unit(key), value, state, decay, beta),
            outs=b.names(2),
            domain=MICROSOFT,
            q_num_heads=self._heads,
            kv_num_heads=self._heads,
            update_rule="gated_delta",
        )
        return out, after

    def _unit(self, rows: str) -> str:
        """Heads of length one, and for each value head that of its key head."""
        b, key_heads, heads, dim = self._b, self._attributes["k_heads"], self._heads, self._dim
        scale, eps = b.constant(np.full(dim, dim**-0.5, np.float32)), self._attributes["eps"] / dim
        unit = b.op(
            "RMSNormalization", b.op("Reshape", rows, b.ints(0, 0, key_heads, dim)), scale, axis=-1, epsilon=eps
        )
        tiled = np.arange(heads) % key_heads if self._attributes["tiled"] else np.arange(heads) // (heads // key_heads)
        spread = b.op("Gather", unit, b.constant(tiled.astype(np.int64)), axis=2)
        return b.op("Reshape", spread, b.ints(0, 0, heads * dim))

    def _gated(self, out: str, mixed: str) -> None:
        """The normed rows of the layer times silu(z), or sigmoid(z)."""
        b, width = self._b, self._heads * self._dim
        rows = b.op("Gather", b.op("Reshape", out, b.ints(-1, self._heads, self._dim)), self._recurrence.back)
        normed = b.op("RMSNormalization", rows, b.vector(self._norm), axis=-1, epsilon=self._attributes["eps"])
        gate = b.op("Sigmoid", self._z)
        if self._attributes.get("gate") != "sigmoid":
            gate = b.op("Mul", self._z, gate)
        b.op("Mul", b.op("Reshape", normed, b.ints(0, width)), gate, out=mixed)
