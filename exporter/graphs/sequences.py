"""Which rows of a step belong to which sequence; picking and shifting rows with native integer operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trigraph.exporter.graphs.builder import INT32, INT64, GraphBuilder, shape


@dataclass(frozen=True)
class Sequences:
    """The inputs that give each sequence its rows, its first position, and its KV pages."""

    cu_seqlens: ir.Value
    past_lens: ir.Value
    page_table: ir.Value


def gather(graph: GraphBuilder, x: ir.Value, index: ir.Value, name: str) -> ir.Value:
    """The rows of x [T, D] at `index`."""
    return graph.node("Gather", [x, index], name, [shape(index)[0], *shape(x)[1:]], axis=0)


def last_index(graph: GraphBuilder, cu_seqlens: ir.Value) -> ir.Value:
    """The row of each sequence's last token: int32 [S]."""
    one = graph.constant("one_i32", 1, np.int32)
    ends = _part(graph, cu_seqlens, 1, np.iinfo(np.int64).max, "rows.ends")
    return graph.node("Sub", [ends, one], "rows.last")


def shifted(graph: GraphBuilder, hidden: ir.Value, prev_hidden: ir.Value, cu_seqlens: ir.Value) -> ir.Value:
    """For each row of hidden [T, D] the row before it; for a sequence's first row, its row of prev_hidden [S, D]."""
    zero, one = graph.constant("zero", 0, np.int64), graph.constant("one", 1, np.int64)
    sequences, tokens = _count(graph, prev_hidden, "rows.sequences"), _count(graph, hidden, "rows.tokens")
    both = graph.node("Concat", [prev_hidden, hidden], "rows.hiddens", ["S+T", shape(hidden)[1]], axis=0)
    # Row t of `hidden` is row S + t of both.
    start = graph.node("Sub", [sequences, one], "rows.shift")
    stop = graph.node("Add", [start, tokens], "rows.shift_end")
    before = graph.node("Range", [start, stop, one], "rows.before", ["T"])
    numbers = graph.node("Range", [zero, sequences, one], "rows.numbers", ["S"])
    source = graph.node("ScatterElements", [before, _starts(graph, cu_seqlens), numbers], "rows.source", axis=0)
    return gather(graph, both, source, "rows.shifted")


def last_rows(graph: GraphBuilder, sequences: Sequences, last: ir.Value) -> Sequences:
    """The same sequences when a step has only the row `last` of each, one a sequence, at its position."""
    cu_seqlens = sequences.cu_seqlens
    zero, one = graph.constant("zero_i32", 0, np.int32), graph.constant("one_i32", 1, np.int32)
    before = graph.node("Sub", [last, _starts(graph, cu_seqlens)], "rows.before")
    size = graph.node("Cast", [_count(graph, cu_seqlens, "rows.bounds")], "rows.bounds_i32", dtype=INT32, to=INT32)
    return Sequences(
        cu_seqlens=graph.node("Range", [zero, size, one], "rows.single", ["S+1"]),
        past_lens=graph.node("Add", [sequences.past_lens, before], "rows.positions"),
        page_table=sequences.page_table,
    )


def _starts(graph: GraphBuilder, cu_seqlens: ir.Value) -> ir.Value:
    return _part(graph, cu_seqlens, 0, -1, "rows.starts")


def _part(graph: GraphBuilder, cu_seqlens: ir.Value, start: int, stop: int, name: str) -> ir.Value:
    bounds = [graph.constant(f"{name}.{part}", [at], np.int64) for part, at in (("from", start), ("to", stop))]
    return graph.node("Slice", [cu_seqlens, *bounds], name, ["S"])


def _count(graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
    """The number of rows of x: an int64 scalar."""
    size = graph.node("Shape", [x], f"{name}.shape", [1], INT64, start=0, end=1)
    return graph.node("Squeeze", [size], name, [])
