"""The graphs of a text model: prefill, draft and verify. Inputs and outputs are the public contract with hosts."""

from __future__ import annotations

import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import FLOAT, INT32, INT64, GraphBuilder, shape
from trigraph.exporter.graphs.drafter import DrafterGraph
from trigraph.exporter.graphs.images import image_inputs, with_images
from trigraph.exporter.graphs.layers import Recurrence, block
from trigraph.exporter.graphs.mtp import draft_layer, write_kv
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences, last_rows, previous_rows
from trigraph.exporter.graphs.streams import streams_trunk
from trigraph.exporter.graphs.streams_mtp import StreamsHead
from trigraph.models import names
from trigraph.models.drafter.drafter import BlockDrafter


def build_verify(net: Network, drafter: BlockDrafter | None = None) -> None:
    """Logits of every token; Gated DeltaNet state advances by the accepted tokens of the previous verify only."""
    graph = net.graph
    ids = graph.input("input_ids", INT64, ["T"])
    sequences = _sequences(net)
    embedded = net.embed(ids, names.TOKEN_EMBD, "embed")
    recurrence = _recurrence(graph, commit=False)
    if (streams := net.config.streams) is not None:
        row, hidden = streams_trunk(net, streams, ids, embedded, sequences, recurrence)
        _head(net, row, hidden)
        return
    *entering, x, addend = _trunk(net, embedded, sequences, recurrence)
    hidden, leaving = net.norm(x, names.OUTPUT_NORM, "output_norm", addend)
    if drafter is not None:
        DrafterGraph(net, drafter).write_context([*entering, leaving], sequences)
    _head(net, hidden, hidden)


def build_prefill(net: Network, drafter: BlockDrafter | None = None) -> None:
    """Logits of each sequence's last token; commits all tokens, and writes what an MTP head and a drafter need of them.

    These are the keys and values of the head, and those of the drafter's context.
    """
    graph = net.graph
    ids = graph.input("input_ids", INT64, ["T"])
    sequences = _sequences(net)
    recurrence = _recurrence(graph, commit=True)
    prev_hidden = graph.input("prev_hidden", FLOAT, ["S", net.config.residual])
    images = None if net.sections is None else image_inputs(graph, net.config.hidden)
    embedded = with_images(graph, net.embed(ids, names.TOKEN_EMBD, "embed"), images, "images")
    if (streams := net.config.streams) is not None:
        row, hidden = streams_trunk(net, streams, ids, embedded, sequences, recurrence)
        if net.config.mtp_layers:
            before = previous_rows(graph, hidden, prev_hidden, sequences.cu_seqlens, "previous_hidden")
            StreamsHead(net, streams).write_kv(embedded, before, sequences)
        _, rows = last_rows(graph, sequences, [row, hidden], "last")
        _head(net, *rows)
        return
    *entering, x, addend = _trunk(net, embedded, sequences, recurrence)
    if net.config.mtp_layers or drafter is not None:
        hidden, leaving = net.norm(x, names.OUTPUT_NORM, "output_norm", addend)
        if drafter is not None:
            DrafterGraph(net, drafter).write_context([*entering, leaving], sequences)
        if net.config.mtp_layers:
            before = previous_rows(graph, hidden, prev_hidden, sequences.cu_seqlens, "previous_hidden")
            write_kv(net, ids, embedded, before, sequences, images)
        _, (hidden,) = last_rows(graph, sequences, [hidden], "last")
    else:
        _, (x, addend) = last_rows(graph, sequences, [x, addend], "last")
        hidden, _ = net.norm(x, names.OUTPUT_NORM, "output_norm", addend)
    _head(net, hidden, hidden)


def build_draft(net: Network, vocab: int | None) -> None:
    """The MTP head's next token for each sequence; writes keys and values for every row.

    `vocab` limits the output matrix to its first rows.
    """
    graph = net.graph
    ids = graph.input("input_ids", INT64, ["T"])
    prev_hidden = graph.input("prev_hidden", FLOAT, ["T", net.config.residual])
    sequences = _sequences(net, last=True)
    if (streams := net.config.streams) is not None:
        hidden, logits = StreamsHead(net, streams).draft(ids, prev_hidden, sequences, vocab)
    else:
        hidden, logits = draft_layer(net, ids, prev_hidden, sequences, vocab)
    graph.output(logits, "logits")
    _top_token(net, logits, probability=True)
    graph.output(hidden, "hidden")


def build_block_draft(net: Network, drafter: BlockDrafter, vocab: int | None) -> None:
    """Candidates of every row of a block drafter, and their scores by what stands before them."""
    ids = net.graph.input("input_ids", INT64, ["T"])
    DrafterGraph(net, drafter).draft(ids, _sequences(net), vocab)


def _trunk(net: Network, x: ir.Value, sequences: Sequences, recurrence: Recurrence) -> list[ir.Value]:
    """All layers for embedded rows x [T, hidden]: what enters each, then two values whose sum the output norm takes."""
    addend, values = None, []
    for layer in range(net.config.trunk_layers):
        entering, x, addend = block(net, layer, x, addend, sequences, recurrence)
        values.append(entering)
    assert addend is not None  # a model has at least one layer
    return [*values, x, addend]


def _head(net: Network, row: ir.Value, hidden: ir.Value) -> None:
    """The outputs of a trunk: logits of its last rows, tokens, and the hidden rows that an MTP head reads."""
    logits = net.linear(row, net.output_matrix, "output")
    net.graph.output(logits, "logits")
    _top_token(net, logits, probability=False)
    net.graph.output(hidden, "hidden")


def _top_token(net: Network, logits: ir.Value, *, probability: bool) -> None:
    """The output `tokens`, and `probability` where asked for."""
    rows = [shape(logits)[0]]
    outputs = {"tokens": net.graph.value("top_token", INT64, rows)}
    if probability:
        outputs["probability"] = net.graph.value("top_probability", FLOAT, rows)
    net.graph.multi_node(
        "TopToken", [logits], "top_token", list(outputs.values()), DOMAIN, probability=int(probability)
    )
    for name, value in outputs.items():
        net.graph.output(value, name)


def _sequences(net: Network, *, last: bool = False) -> Sequences:
    """`last`: the last rows of sequences need positions of their own."""
    graph, images = net.graph, net.sections is not None
    return Sequences(
        cu_seqlens=graph.input("cu_seqlens", INT32, ["S+1"]),
        past_lens=graph.input("past_lens", INT32, ["S"]),
        page_table=graph.input("page_table", INT32, ["S", "P"]),
        positions=graph.input("positions", INT32, [3, "T"]) if images else None,
        last_positions=graph.input("last_positions", INT32, [3, "S"]) if images and last else None,
    )


def _recurrence(graph: GraphBuilder, *, commit: bool) -> Recurrence:
    return Recurrence(
        accepted=graph.input("accepted", INT32, ["S"]),
        slots_in=graph.input("slots_in", INT32, ["S"]),
        slots_out=graph.input("slots_out", INT32, ["S"]),
        commit=commit,
    )
