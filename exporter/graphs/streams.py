"""Residual streams: mixers that read one row from them and write one back, and n-grams that add to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import FLOAT, INT64, shape
from trigraph.exporter.graphs.ffn import feed_forward
from trigraph.exporter.graphs.layers import Recurrence, mixer
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences
from trigraph.models import names
from trigraph.models.streams import Ngrams, Streams


@dataclass(frozen=True)
class StreamRows:
    """Streams [T, count x hidden], side by side, and what the next norm has still to add to them."""

    x: ir.Value
    block: ir.Value | None = None
    """The result of a part [T, hidden]."""
    inject: ir.Value | None = None
    """How much of it goes to each stream [T, count]; the norm turns it into factors."""


def streams_trunk(
    net: Network, streams: Streams, ids: ir.Value, embedded: ir.Value, sequences: Sequences, recurrence: Recurrence
) -> tuple[ir.Value, ir.Value]:
    """All layers for embedded rows [T, hidden]: the last mixer's row [T, hidden], and the streams before it."""
    table = _ngram_rows(net, streams.ngrams, ids, sequences) if streams.ngrams is not None else None
    copies = [embedded] * streams.count
    wide = [shape(embedded)[0], net.config.residual]
    rows = StreamRows(net.graph.node("Concat", copies, "streams", wide, axis=1))
    for layer in range(net.config.trunk_layers):
        if streams.ngrams is not None and table is not None and layer == streams.ngrams.layer:
            rows = _add_ngrams(net, streams, streams.ngrams, rows, table, sequences, recurrence)
        rows = _block(net, streams, layer, rows, sequences, recurrence)
    hidden, rows = mix(net, streams, rows, names.OUTPUT_MIXER, "output_hc")
    return hidden, rows.x


def _block(
    net: Network, streams: Streams, layer: int, rows: StreamRows, sequences: Sequences, recurrence: Recurrence
) -> StreamRows:
    """One trunk layer: each of its two parts computes a row from the streams and adds to them."""
    name = f"blk.{layer}"
    weights = [names.in_block(layer, weight) for weight in names.mixer(names.HC_ATTN)]
    x, rows = mix(net, streams, rows, weights, f"{name}.hc_attn")
    rows = StreamRows(rows.x, mixer(net, layer, x, sequences, recurrence), rows.inject)
    return streams_ffn(net, streams, layer, rows, name)


def streams_ffn(net: Network, streams: Streams, layer: int, rows: StreamRows, name: str) -> StreamRows:
    """The second part of a block, whose result is left to be added."""
    weights = [names.in_block(layer, weight) for weight in names.mixer(names.HC_FFN)]
    x, rows = mix(net, streams, rows, weights, f"{name}.hc_ffn")
    return StreamRows(rows.x, feed_forward(net, layer, x, f"{name}.ffn"), rows.inject)


def mix(
    net: Network, streams: Streams, rows: StreamRows, weights: list[str] | tuple[str, ...], name: str
) -> tuple[ir.Value, StreamRows]:
    """One row [T, hidden] of the streams, and the streams without anything left to add.

    `weights`: norm, down, up, and inject where the row's result goes back; the streams then have it.
    """
    normed, x = stream_norm(net, streams, rows, weights[0], f"{name}.norm")
    inputs = {f"{name}.down": weights[1]} | ({f"{name}.inject": weights[3]} if len(weights) > 3 else {})
    down, *inject = net.linears(normed, f"{name}.projections", inputs)
    logits = net.gated_linear(down, None, weights[2], f"{name}.up", scale=1 / streams.count)
    row = net.graph.node(
        "StreamMean",
        [normed, logits],
        f"{name}.mean",
        [shape(normed)[0], net.config.hidden],
        domain=DOMAIN,
        streams=streams.count,
    )
    return row, StreamRows(x, None, inject[0] if inject else None)


def stream_norm(net: Network, streams: Streams, rows: StreamRows, weight: str, name: str) -> tuple[ir.Value, ir.Value]:
    """The norm of each stream, and the streams with all that was to be added."""
    inputs, outputs = [rows.x, net.vector(weight)], [net.graph.value(name, FLOAT, shape(rows.x))]
    if rows.block is not None and rows.inject is not None:
        inputs += [rows.block, rows.inject]
        outputs.append(net.graph.value(f"{name}.sum", FLOAT, shape(rows.x)))
    settings = {"streams": streams.count, "eps": net.config.rms_eps}
    net.graph.multi_node("StreamNorm", inputs, name, outputs, DOMAIN, **settings)
    return outputs[0], outputs[-1] if len(outputs) > 1 else rows.x


def _ngram_rows(net: Network, ngrams: Ngrams, ids: ir.Value, sequences: Sequences) -> ir.Value:
    """The table's rows of each token, side by side [T, hidden]. They are found as soon as the ids are known."""
    before = net.graph.input("previous_ids", INT64, ["S", ngrams.size - 1])
    constants = {"multipliers": ngrams.multipliers, "moduli": ngrams.moduli, "offsets": ngrams.offsets}
    inputs = [net.graph.constant(f"ngrams.{name}", values, np.int64) for name, values in constants.items()]
    found = net.graph.node(
        "NgramRows",
        [ids, before, sequences.cu_seqlens, *inputs],
        "ngrams.ids",
        ["ngram rows"],
        domain=DOMAIN,
        eos=ngrams.eos,
    )
    rows = net.embed(found, names.NGRAM_TABLE, "ngrams.rows", ngrams.width)
    size = net.graph.constant("ngrams.size", [-1, net.config.hidden], np.int64)
    return net.graph.node("Reshape", [rows, size], "ngrams.tokens", [shape(ids)[0], net.config.hidden])


def _add_ngrams(
    net: Network,
    streams: Streams,
    ngrams: Ngrams,
    rows: StreamRows,
    table: ir.Value,
    sequences: Sequences,
    recurrence: Recurrence,
) -> StreamRows:
    """The streams with what rows of the table add to them."""

    def weight(name: str) -> str:
        return names.in_block(ngrams.layer, name)

    name, state = f"blk.{ngrams.layer}.ngrams", f"ngrams.{ngrams.layer}.window"
    projections = {f"{name}.key": weight(names.PLE_KEY), f"{name}.value": weight(names.PLE_VALUE)}
    key, value = net.linears(table, f"{name}.projections", projections)
    keys, _ = stream_norm(net, streams, StreamRows(key), weight(names.PLE_NORM_KEY), f"{name}.key_norm")
    query, x = stream_norm(net, streams, rows, weight(names.PLE_NORM_QUERY), f"{name}.query_norm")
    y = net.graph.value(f"{name}.mix", FLOAT, shape(x))
    net.graph.multi_node(
        "NgramMix",
        [
            *(x, keys, query, value, net.vector(weight(names.PLE_NORM_CONV)), net.vector(weight(names.PLE_CONV1D))),
            *(net.past(state), sequences.cu_seqlens, sequences.past_lens),
            *(recurrence.accepted, recurrence.slots_in, recurrence.slots_out),
        ],
        f"{name}.mix",
        [y, net.present(state)],
        DOMAIN,
        streams=streams.count,
        dilation=ngrams.size,
        commit=int(recurrence.commit),
        eps=net.config.rms_eps,
    )
    return StreamRows(y)
