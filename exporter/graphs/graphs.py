"""The three graphs of a model: prefill, draft and verify. Inputs and outputs are the public contract with hosts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trigraph.exporter.graphs.builder import FLOAT, INT32, INT64, GraphBuilder, shape
from trigraph.exporter.graphs.layers import Recurrence, block
from trigraph.exporter.graphs.mtp import draft_layer, write_kv
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences, gather, last_index, shifted
from trigraph.models import names


def build_verify(net: Network) -> None:
    """Logits of every token; Gated DeltaNet state advances by the accepted tokens of the previous verify only."""
    graph = net.graph
    ids = graph.input("input_ids", INT64, ["T"])
    sequences = _sequences(graph)
    x = _trunk(net, net.embed(ids, names.TOKEN_EMBD, "embed"), sequences, _recurrence(graph, commit=False))
    hidden = net.norm(x, names.OUTPUT_NORM, "output_norm")
    _head(net, hidden)


def build_prefill(net: Network) -> None:
    """Logits of each sequence's last token; commits all tokens and writes the MTP head's keys and values."""
    graph = net.graph
    ids = graph.input("input_ids", INT64, ["T"])
    sequences = _sequences(graph)
    recurrence = _recurrence(graph, commit=True)
    prev_hidden = graph.input("prev_hidden", FLOAT, ["S", net.config.hidden])
    embedded = net.embed(ids, names.TOKEN_EMBD, "embed")
    x = _trunk(net, embedded, sequences, recurrence)
    last = last_index(graph, sequences.cu_seqlens)
    if net.config.mtp_layers:
        hidden = net.norm(x, names.OUTPUT_NORM, "output_norm")
        before = shifted(graph, hidden, prev_hidden, sequences.cu_seqlens)
        write_kv(net, ids, embedded, before, sequences)
        hidden = gather(graph, hidden, last, "last_hidden")
    else:
        hidden = net.norm(gather(graph, x, last, "last_row"), names.OUTPUT_NORM, "output_norm")
    _head(net, hidden)


def build_draft(net: Network, vocab: int | None) -> None:
    """The MTP head's next token for each sequence; writes keys and values for every row.

    `vocab` limits the output matrix to its first rows.
    """
    graph = net.graph
    ids = graph.input("input_ids", INT64, ["T"])
    prev_hidden = graph.input("prev_hidden", FLOAT, ["T", net.config.hidden])
    sequences = _sequences(graph)
    hidden, logits = draft_layer(net, ids, prev_hidden, sequences, vocab)
    _argmax(net, logits)
    # Softmax and then the maximum: a row's sum of exponentials is the same whatever rows stand beside it.
    softmax = graph.node("Softmax", [logits], "softmax", axis=-1)
    axes = graph.constant("last_axis", [-1], np.int64)
    graph.output(graph.node("ReduceMax", [softmax, axes], "top", ["S"], keepdims=0), "probability")
    graph.output(hidden, "hidden")


def _trunk(net: Network, x: ir.Value, sequences: Sequences, recurrence: Recurrence) -> ir.Value:
    for layer in range(net.config.trunk_layers):
        x = block(net, layer, x, sequences, recurrence)
    return x


def _head(net: Network, hidden: ir.Value) -> None:
    """The outputs of a trunk: logits, tokens and the hidden rows themselves."""
    logits = net.linear(hidden, net.output_matrix, "output")
    net.graph.output(logits, "logits")
    _argmax(net, logits)
    net.graph.output(hidden, "hidden")


def _argmax(net: Network, logits: ir.Value) -> None:
    rows = [shape(logits)[0]]
    tokens = net.graph.node("ArgMax", [logits], "argmax", rows, INT64, axis=-1, keepdims=0, select_last_index=0)
    net.graph.output(tokens, "tokens")


def _sequences(graph: GraphBuilder) -> Sequences:
    return Sequences(
        cu_seqlens=graph.input("cu_seqlens", INT32, ["S+1"]),
        past_lens=graph.input("past_lens", INT32, ["S"]),
        page_table=graph.input("page_table", INT32, ["S", "P"]),
    )


def _recurrence(graph: GraphBuilder, *, commit: bool) -> Recurrence:
    return Recurrence(
        accepted=graph.input("accepted", INT32, ["S"]),
        slots_in=graph.input("slots_in", INT32, ["S"]),
        slots_out=graph.input("slots_out", INT32, ["S"]),
        commit=commit,
    )
