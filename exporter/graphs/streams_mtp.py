"""The multi-token-prediction head of a model with residual streams: a block that reads them, and mixers of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trigraph.exporter.graphs.builder import shape
from trigraph.exporter.graphs.layers import attention, kv_weights, kv_write, qkv_weights, select, write_index
from trigraph.exporter.graphs.mtp import STATE
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences, last_rows
from trigraph.exporter.graphs.streams import StreamRows, mix, streams_ffn
from trigraph.models import names
from trigraph.models.streams import Streams


@dataclass(frozen=True)
class StreamsHead:
    """What the head is made of; it needs no more than a graph's network and the streams."""

    net: Network
    streams: Streams

    def write_kv(self, embedded: ir.Value, before: ir.Value, sequences: Sequences) -> None:
        """Write the head's keys and values for every row.

        `embedded` [T, hidden] are the tokens' embeddings, `before` [T, count x hidden] the streams of the token before
        each.
        """
        x, _ = self._first(embedded, before)
        key, value = self.net.linears(x, "mtp.attn.kv", kv_weights(self._layer, "mtp.attn"))
        kv_write(self.net, self._layer, STATE, key, value, sequences, "mtp.attn")
        self._index(x, sequences)

    def draft(
        self, ids: ir.Value, before: ir.Value, sequences: Sequences, vocab: int | None
    ) -> tuple[ir.Value, ir.Value]:
        """Keys and values for all rows, the rest for each sequence's last row only.

        Returns the streams [S, count x hidden] behind the block, and their logits over the first `vocab` tokens.
        """
        net, layer = self.net, self._layer
        x, rows = self._first(net.embed(ids, names.TOKEN_EMBD, "mtp.embed"), before)
        query, key, value = net.linears(x, "mtp.attn.qkv", qkv_weights(layer, "mtp.attn"))
        cache = kv_write(net, layer, STATE, key, value, sequences, "mtp.attn")
        queries, index = self._index(x, sequences)
        assert rows.inject is not None  # a block's mixers have it
        _, (inject, queries) = last_rows(net.graph, sequences, [rows.inject, queries], "mtp.last_inject")
        sequences, (streams, query) = last_rows(net.graph, sequences, [rows.x, query], "mtp.last")
        groups = select(net, self.streams.indexer, layer, queries, index, sequences, "mtp.attn")
        mixed = attention(net, layer, query, cache, sequences, "mtp.attn", groups)
        rows = streams_ffn(net, self.streams, layer, StreamRows(streams, mixed, inject), "mtp")
        row, rows = mix(net, self.streams, rows, self._tensors(*names.HEAD_MIXER), "mtp.head_hc")
        return rows.x, net.linear(row, net.output_matrix, "mtp.head", vocab)

    def _index(self, x: ir.Value, sequences: Sequences) -> tuple[ir.Value, ir.Value]:
        """The indexer's queries, and its pages with the keys of rows x."""
        return write_index(self.net, self.streams.indexer, self._layer, "mtp.index", x, sequences, "mtp.attn")

    @property
    def _layer(self) -> int:
        return self.net.config.trunk_layers

    def _tensors(self, *parts: str) -> list[str]:
        return [names.in_block(self._layer, part) for part in parts]

    def _first(self, embedded: ir.Value, before: ir.Value) -> tuple[ir.Value, StreamRows]:
        """The row that attention reads [T, hidden], and the streams [T, count x hidden] that its result goes to.

        A stream is eh_proj [enorm(embedding) | hnorm(streams)'s own part], where hnorm takes all streams as one row, as
        in SGLang and vLLM; llama.cpp norms each by itself.
        """
        net, count, hidden = self.net, self.streams.count, self.net.config.hidden
        enorm, hnorm, eh_proj = self._tensors(names.NEXTN_ENORM, names.NEXTN_HNORM, names.NEXTN_EH_PROJ)
        own, _ = net.norm(embedded, enorm, "mtp.enorm")
        normed, _ = net.norm(before, hnorm, "mtp.hnorm")
        copies = net.graph.node("Concat", [own] * count, "mtp.copies", shape(before), axis=1)
        narrow, wide = (net.graph.constant(f"mtp.{width}", [-1, width], np.int64) for width in (hidden, count * hidden))
        halves = [
            net.graph.node("Reshape", [value, narrow], f"{value.name}.streams", ["streams", hidden])
            for value in (copies, normed)
        ]
        pairs = net.graph.node("Concat", halves, "mtp.pairs", ["streams", 2 * hidden], axis=1)
        rows = net.linear(pairs, eh_proj, "mtp.eh_proj")
        x = net.graph.node("Reshape", [rows, wide], "mtp.streams", shape(before))
        return mix(net, self.streams, StreamRows(x), self._tensors(*names.mixer(names.HC_ATTN)), "mtp.hc_attn")
