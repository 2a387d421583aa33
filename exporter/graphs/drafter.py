"""A block drafter: its context in the graphs of the trunk, and the draft of a block's rows in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from trigraph.exporter.graphs.block_rows import BlockRows, block_rows
from trigraph.exporter.graphs.builder import FLOAT, INT64, shape
from trigraph.exporter.graphs.ffn import feed_forward
from trigraph.exporter.graphs.layers import attention, kv_weights, kv_write, qkv_weights
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences
from trigraph.models import names
from trigraph.models.drafter import tensors
from trigraph.models.drafter.drafter import PREFIX, BlockDrafter

_GATE = 40.0
"""A gate that changes nothing, as its sigmoid is 1 in float32: the operator wants one, and these layers have none."""
_FOLLOWER_TABLES = {
    "dflash2": (tensors.SELECTOR_PREDECESSOR, tensors.SELECTOR_SUCCESSOR),
    "dspark": (tensors.MARKOV_W1, tensors.MARKOV_W2),
}
"""By kind: the table with rows for the token before, and the one with rows for the token that follows."""


class DrafterGraph:
    """Adds a drafter to a graph of its model."""

    def __init__(self, net: Network, drafter: BlockDrafter) -> None:
        """`net`: the model in that graph."""
        config = drafter.config
        self._drafter, self._config, self._graph, self._net = drafter, config, net.graph, net
        sections = (config.rope_dims // 2, 0, 0)  # all pairs rotate by the axis of time
        self._own = replace(net, config=config.as_model(net.config), sections=sections, prefix=PREFIX)

    def write_context(self, entering: Sequence[ir.Value], sequences: Sequences) -> None:
        """Write every layer's keys and values. `entering`: what enters each layer of the trunk, then what leaves it.

        Keys and values are all that later drafts need of a text: no layer of the drafter runs on it.
        """
        config, own = self._config, self._own
        if sequences.positions is None:
            own = replace(own, sections=None)
        taps = [entering[tap] for tap in config.taps]
        wide = [shape(taps[0])[0], len(taps) * config.hidden]
        joined = self._graph.node("Concat", taps, "draft.taps", wide, axis=1)
        x, _ = own.norm(own.linear(joined, tensors.FC, "draft.fc"), tensors.CONTEXT_NORM, "draft.context")
        for layer in range(config.layers):
            name = f"draft.{layer}.attn"
            key, value = own.linears(x, f"{name}.kv", kv_weights(layer, name))
            kv_write(own, layer, f"draft.{layer}", key, value, sequences, name)

    def draft(self, ids: ir.Value, sequences: Sequences, vocab: int | None) -> None:
        """The outputs `candidates` and `edges` of every row, and its keys and values.

        `vocab` limits the model's output matrix to its first rows, where the drafter has no map of its own.
        """
        rows = block_rows(self._graph, self._config.hidden, ids, sequences)
        x, addend = self._holder(names.TOKEN_EMBD).embed(ids, names.TOKEN_EMBD, "draft.embed"), None
        for layer in range(self._config.layers):
            x, addend = self._layer(layer, x, addend, rows)
        hidden, _ = self._own.norm(x, names.OUTPUT_NORM, "draft.head_norm", addend)
        head = self._holder(names.OUTPUT)
        matrix = names.OUTPUT if head is self._own else self._net.output_matrix
        limit = vocab if self._drafter.tokens is None else None
        self._edges(rows, hidden, head.linear(hidden, matrix, "draft.logits", limit))

    def _holder(self, weight: str) -> Network:
        """The drafter where it has a tensor that the model has as well, else the model."""
        return self._own if PREFIX + weight in self._drafter.tensors else self._net

    def _layer(self, layer: int, x: ir.Value, addend: ir.Value | None, rows: BlockRows) -> tuple[ir.Value, ir.Value]:
        """One layer of x + addend: the sum so far, and what is still to be added to it."""
        own, name = self._own, f"draft.{layer}"
        normed, x = own.norm(x, names.in_block(layer, names.ATTN_NORM), f"{name}.attn_norm", addend)
        mixed = self._convolved(layer, "attn", normed, rows, lambda entering: self._attention(layer, entering, rows))
        normed, x = own.norm(x, names.in_block(layer, tensors.FFN_NORM), f"{name}.ffn_norm", mixed)
        return x, self._convolved(
            layer, "ffn", normed, rows, lambda entering: feed_forward(own, layer, entering, f"{name}.ffn")
        )

    def _attention(self, layer: int, x: ir.Value, rows: BlockRows) -> ir.Value:
        """Attention of a block's rows to the context and to each other, projected back."""
        config, own, graph, name = self._config, self._own, self._graph, f"draft.{layer}.attn"
        query, key, value = own.linears(x, f"{name}.qkv", qkv_weights(layer, name))
        cache = kv_write(own, layer, f"draft.{layer}", key, value, rows.steps, name)
        heads, dim = config.heads, config.head_dim
        query = self._reshaped(query, [heads, dim], f"{name}.heads")
        pads = graph.constant("gate_pads", [0, 0, 0, 0, 0, dim], np.int64)
        gate = graph.constant("gate", _GATE, np.float32)
        query = graph.node("Pad", [query, pads, gate], f"{name}.gates", ["T", heads, 2 * dim])
        query = self._reshaped(query, [2 * heads * dim], f"{name}.gated")
        seen = rows.seen(config.window if config.sliding[layer] else 0, config.causal[layer])
        return attention(own, layer, query, cache, seen, name)

    def _convolved(
        self, layer: int, half: str, x: ir.Value, rows: BlockRows, inner: Callable[[ir.Value], ir.Value]
    ) -> ir.Value:
        """Attention or feed-forward. In dflash2, input and output are convolved, with kernels made from the input."""
        config, graph, name = self._config, self._graph, f"draft.{layer}.{half}_conv"
        if config.kind != "dflash2":
            return inner(x)
        kernel, size, taps = config.conv_kernel, config.conv_group, 2 * config.conv_kernel
        groups = config.hidden // size
        kernels = self._own.linear(x, names.in_block(layer, tensors.CONV_PROJ[half]), f"{name}.proj")
        kernels = self._reshaped(kernels, [taps, groups, 1], f"{name}.groups")
        base = self._own.vector(names.in_block(layer, tensors.CONV_BASE[half]))
        kernels = graph.node("Add", [kernels, base], f"{name}.kernels", ["T", taps, groups, size])
        kernels = self._reshaped(kernels, [taps * config.hidden], f"{name}.flat")
        parts = [graph.value(f"{name}.tap_{tap}", FLOAT, ["T", config.hidden]) for tap in range(taps)]
        graph.multi_node("Split", [kernels], f"{name}.taps", parts, axis=1, num_outputs=taps)
        entering = self._convolution(x, parts[:kernel], rows, f"{name}.in")
        return self._convolution(inner(entering), parts[kernel:], rows, f"{name}.out")

    def _convolution(self, x: ir.Value, taps: Sequence[ir.Value], rows: BlockRows, name: str) -> ir.Value:
        """The sum of each row and those before it, times their coefficients `taps`. Zeros precede a block."""
        graph, before = self._graph, x
        total = graph.node("Mul", [taps[0], x], f"{name}.0")
        for tap, coefficients in enumerate(taps[1:], 1):
            before = rows.previous(before, f"{name}.row_{tap}")
            term = graph.node("Mul", [coefficients, before], f"{name}.{tap}")
            total = graph.node("Add", [total, term], f"{name}.sum_{tap}")
        return total

    def _edges(self, rows: BlockRows, hidden: ir.Value, logits: ir.Value) -> None:
        """The outputs: candidates of each row, and the score of each after every candidate of the row before."""
        graph, config, drafter = self._graph, self._config, self._drafter
        count = config.candidates
        scores, best = graph.value("draft.top", FLOAT, ["T", count]), graph.value("draft.top_rows", INT64, ["T", count])
        graph.multi_node(
            "TopK", [logits, graph.constant("candidate_count", [count], np.int64)], "draft.top", [scores, best], axis=-1
        )
        tokens = best
        if drafter.tokens is not None:
            table = graph.constant("token_of_row", drafter.tokens, np.int64)
            tokens = graph.node("Gather", [table, best], "draft.top_tokens", shape(best))
        edges = self._reshaped(self._capped(scores), [1, count], "draft.scores")
        if config.kind != "dflash":
            behind = self._followers(rows, hidden, best, tokens)
            edges = graph.node("Add", [edges, behind], "draft.edges", shape(behind))
        graph.output(tokens, "candidates")
        graph.output(edges, "edges")

    def _capped(self, scores: ir.Value) -> ir.Value:
        """Scaled and softly capped logits: neither changes their order."""
        graph, config = self._graph, self._config
        if config.logit_scale != 1:
            factor = graph.constant("logit_scale", config.logit_scale, np.float32)
            scores = graph.node("Mul", [scores, factor], "draft.scaled")
        if config.logit_cap:
            cap = graph.constant("logit_cap", config.logit_cap, np.float32)
            scores = graph.node("Tanh", [graph.node("Div", [scores, cap], "draft.of_cap")], "draft.tanh")
            scores = graph.node("Mul", [scores, cap], "draft.capped")
        return scores

    def _followers(self, rows: BlockRows, hidden: ir.Value, best: ir.Value, tokens: ir.Value) -> ir.Value:
        """What the score of a candidate (last) gains after each token that may stand before it [T, C, C]."""
        graph, config = self._graph, self._config
        count, rank = config.candidates, config.rank
        tables = _FOLLOWER_TABLES[config.kind]
        before = self._rows_of(rows.predecessors(tokens, from_anchor=config.from_anchor), tables[0], "draft.before")
        # A map of the output matrix's rows to tokens is one of the followers' rows, but not of the selector's.
        after = self._rows_of(tokens if config.kind == "dflash2" else best, tables[1], "draft.after")
        if config.kind == "dflash2":
            gate = self._own.linear(hidden, tensors.SELECTOR_HIDDEN, "draft.gate")
            gate = self._reshaped(gate, [1, rank], "draft.gate.rows")
            before = graph.node("Mul", [before, gate], "draft.before.gated")
        after = graph.node("Transpose", [after], "draft.after.columns", ["T", rank, count], perm=[0, 2, 1])
        return graph.node("MatMul", [before, after], "draft.pairs", ["T", count, count])

    def _rows_of(self, ids: ir.Value, table: str, name: str) -> ir.Value:
        """Rows of a table for ids [T, C]: [T, C, rank]."""
        config = self._config
        flat = self._graph.constant("flat", [-1], np.int64)
        ids = self._graph.node("Reshape", [ids, flat], f"{name}.ids", ["T*C"])
        return self._reshaped(
            self._own.embed(ids, table, name, config.rank), [config.candidates, config.rank], f"{name}.rows"
        )

    def _reshaped(self, value: ir.Value, sizes: list[int], name: str) -> ir.Value:
        """The value as rows [T, *sizes]."""
        dims = self._graph.constant(f"rows_of_{'_'.join(map(str, sizes))}", [-1, *sizes], np.int64)
        return self._graph.node("Reshape", [value, dims], name, ["T", *sizes])
