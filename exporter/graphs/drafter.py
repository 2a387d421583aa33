"""A block drafter: its context in the graphs of the trunk, and the draft of a block's rows in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import FLOAT, INT32, INT64, shape
from trigraph.exporter.graphs.ffn import feed_forward
from trigraph.exporter.graphs.layers import attention, kv_weights, kv_write, qkv_weights
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences
from trigraph.models import names
from trigraph.models.drafter import tensors
from trigraph.models.drafter.drafter import PREFIX, BlockDrafter

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
        # In graphs for images, all pairs rotate by the axis of time.
        sections = None if net.sections is None else (config.rope_dims // 2, 0, 0)
        self._own = replace(net, config=config.as_model(net.config), sections=sections, prefix=PREFIX)
        rings = any(net.state[_key(layer)].ring for layer in range(config.layers))
        self._ring_table = self._graph.input("ring_table", INT32, ["S", "Q"]) if rings else None

    def write_context(self, entering: Sequence[ir.Value], sequences: Sequences) -> None:
        """Write every layer's keys and values. `entering`: what enters each layer of the trunk, then what leaves it.

        Keys and values are all that later drafts need of a text: no layer of the drafter runs on it.
        """
        config, own = self._config, self._own
        taps = [entering[tap] for tap in config.taps]
        wide = [shape(taps[0])[0], len(taps) * config.hidden]
        joined = self._graph.node("Concat", taps, "draft.taps", wide, axis=1)
        x, _ = own.norm(own.linear(joined, tensors.FC, "draft.fc"), tensors.CONTEXT_NORM, "draft.context")
        for layer in range(config.layers):
            name = f"draft.{layer}.attn"
            key, value = own.linears(x, f"{name}.kv", kv_weights(layer, name))
            kv_write(own, layer, f"draft.{layer}", key, value, self._placed(layer, sequences), name)

    def draft(self, ids: ir.Value, sequences: Sequences, vocab: int | None) -> None:
        """The outputs `candidates` and `edges` of every row, and its keys and values.

        `vocab` limits the model's output matrix to its first rows, where the drafter has no map of its own.
        """
        x, addend = self._holder(names.TOKEN_EMBD).embed(ids, names.TOKEN_EMBD, "draft.embed"), None
        for layer in range(self._config.layers):
            x, addend = self._layer(layer, x, addend, sequences)
        hidden, _ = self._own.norm(x, names.OUTPUT_NORM, "draft.head_norm", addend)
        head = self._holder(names.OUTPUT)
        matrix = names.OUTPUT if head is self._own else self._net.output_matrix
        limit = vocab if self._drafter.tokens is None else None
        self._edges(ids, sequences, hidden, head.linear(hidden, matrix, "draft.logits", limit))

    def _holder(self, weight: str) -> Network:
        """The drafter where it has a tensor that the model has as well, else the model."""
        return self._own if PREFIX + weight in self._drafter.tensors else self._net

    def _layer(self, layer: int, x: ir.Value, addend: ir.Value | None, blocks: Sequences) -> tuple[ir.Value, ir.Value]:
        """One layer of x + addend: the sum so far, and what is still to be added to it."""
        own, name = self._own, f"draft.{layer}"
        normed, x = own.norm(x, names.in_block(layer, names.ATTN_NORM), f"{name}.attn_norm", addend)
        mixed = self._convolved(
            layer, "attn", normed, blocks, lambda entering: self._attention(layer, entering, blocks)
        )
        normed, x = own.norm(x, names.in_block(layer, tensors.FFN_NORM), f"{name}.ffn_norm", mixed)
        return x, self._convolved(
            layer, "ffn", normed, blocks, lambda entering: feed_forward(own, layer, entering, f"{name}.ffn")
        )

    def _attention(self, layer: int, x: ir.Value, blocks: Sequences) -> ir.Value:
        """Attention of a block's rows to the context and to each other, projected back."""
        config, own, name = self._config, self._own, f"draft.{layer}.attn"
        query, key, value = own.linears(x, f"{name}.qkv", qkv_weights(layer, name))
        blocks = self._placed(layer, blocks)
        cache = kv_write(own, layer, f"draft.{layer}", key, value, blocks, name)
        sight = {
            "gate": 0,
            "causal": int(config.causal[layer]),
            "window": config.window if config.sliding[layer] else 0,
        }
        return attention(own, layer, query, cache, blocks, name, sight=sight)

    def _placed(self, layer: int, sequences: Sequences) -> Sequences:
        """The sequences with the table that says where the layer's keys and values are."""
        ring = self._net.state[_key(layer)].ring
        return replace(sequences, page_table=self._ring_table) if ring and self._ring_table else sequences

    def _convolved(
        self, layer: int, half: str, x: ir.Value, blocks: Sequences, inner: Callable[[ir.Value], ir.Value]
    ) -> ir.Value:
        """Attention or feed-forward. In dflash2, input and output are convolved, with kernels made from the input."""
        config, own, name = self._config, self._own, f"draft.{layer}.{half}_conv"
        if config.kind != "dflash2":
            return inner(x)
        kernels = own.linear(x, names.in_block(layer, tensors.CONV_PROJ[half]), f"{name}.proj")
        base = own.vector(names.in_block(layer, tensors.CONV_BASE[half]))

        def convolution(rows: ir.Value, first: int, side: str) -> ir.Value:
            return self._graph.node(
                "BlockConvolution", [rows, kernels, base, blocks.cu_seqlens], f"{name}.{side}", domain=DOMAIN,
                first=first, taps=config.conv_kernel,
            )  # fmt: skip

        return convolution(inner(convolution(x, 0, "in")), config.conv_kernel, "out")

    def _edges(self, ids: ir.Value, blocks: Sequences, hidden: ir.Value, logits: ir.Value) -> None:
        """The outputs: candidates of each row, and the score of each after every candidate of the row before."""
        graph, config, drafter = self._graph, self._config, self._drafter
        count = config.candidates
        scores, best = graph.value("draft.top", FLOAT, ["T", count]), graph.value("draft.top_rows", INT64, ["T", count])
        graph.multi_node("TopTokens", [logits], "draft.top", [scores, best], DOMAIN, count=count)
        tokens = best
        if drafter.tokens is not None:
            table = graph.constant("token_of_row", drafter.tokens, np.int64)
            tokens = graph.node("Gather", [table, best], "draft.top_tokens", shape(best))
        scores = self._capped(scores)
        if config.kind == "dflash":
            dims = graph.constant("edge_dims", [-1, 1, count], np.int64)
            edges = graph.node("Reshape", [scores, dims], "draft.edges", ["T", 1, count])
        else:
            edges = self._followed(ids, blocks, hidden, scores, best, tokens)
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

    def _followed(
        self, ids: ir.Value, blocks: Sequences, hidden: ir.Value, scores: ir.Value, best: ir.Value, tokens: ir.Value
    ) -> ir.Value:
        """The score of a candidate (last) after each token that may stand before it [T, C, C]."""
        config, count = self._config, self._config.candidates
        before, after = _FOLLOWER_TABLES[config.kind]
        # A map of the output matrix's rows to tokens is one of the followers' rows, but not of the selector's.
        following = tokens if config.kind == "dflash2" else best
        inputs = [
            scores,
            self._own.embed(ids, before, "draft.known", config.rank),
            self._rows_of(tokens, before, "draft.before"),
            self._rows_of(following, after, "draft.after"),
            blocks.cu_seqlens,
        ]
        if config.kind == "dflash2":
            inputs.append(self._own.linear(hidden, tensors.SELECTOR_HIDDEN, "draft.gate"))
        return self._graph.node(
            "CandidateEdges", inputs, "draft.edges", ["T", count, count], domain=DOMAIN,
            drafting=int(not config.from_anchor),
        )  # fmt: skip

    def _rows_of(self, ids: ir.Value, table: str, name: str) -> ir.Value:
        """Rows of a table for ids [T, C]: [T * C, rank]."""
        flat = self._graph.constant("flat", [-1], np.int64)
        ids = self._graph.node("Reshape", [ids, flat], f"{name}.ids", ["T*C"])
        return self._own.embed(ids, table, name, self._config.rank)


def _key(layer: int) -> str:
    return f"draft.{layer}.key"
