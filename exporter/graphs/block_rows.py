"""The rows of a block drafter's step: where each stands, what it sees of the cache, and what may stand before it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from trigraph.exporter.graphs.builder import BOOL, FLOAT, INT32, INT64, GraphBuilder, shape
from trigraph.exporter.graphs.sequences import Sequences, previous_rows
from trigraph.exporter.package.state_tensors import PAGE_SIZE

_TO_THE_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class BlockRows:
    """Rows of a step [T], a block of them for each sequence."""

    graph: GraphBuilder
    hidden: int
    ids: ir.Value
    steps: Sequences
    """The sequences, with the position of each row."""
    first: ir.Value
    """The number of the first row of each row's block [T]."""
    place: ir.Value
    """The place of each row in its block, from 0 [T]."""
    at: ir.Value
    """The place of each row in its sequence, and so in the pages [T]."""
    last: ir.Value
    """The place of its block's last row in the sequence, for each row [T]."""
    tables: ir.Value
    """The pages of each row's sequence [T, P]."""
    _seen: dict[tuple[int, bool], Sequences] = field(default_factory=dict)

    def seen(self, window: int, causal: bool) -> Sequences:
        """Each row as a sequence of its own, for the attention operator, in which a row sees all up to its place.

        Each is put at the place of its block's last row, and so sees the whole block; with `causal`, it stays at its
        own. What lies before a `window` is left out by whole pages; 0: no window.
        """
        if (window, causal) not in self._seen:
            self._seen[window, causal] = self._view(window, causal)
        return self._seen[window, causal]

    def _view(self, window: int, causal: bool) -> Sequences:
        graph, name = self.graph, f"block.window_{window}{'.causal' if causal else ''}"
        count = graph.node("Shape", [self.ids], f"{name}.count", [1], INT64)
        count = graph.node("Add", [count, graph.constant("one", [1], np.int64)], f"{name}.count_1")
        starts = _numbers(graph, count, f"{name}.cu_seqlens", "T+1")
        ends, tables = self.at if causal else self.last, self.tables
        if window:
            page = graph.constant("page_size", PAGE_SIZE, np.int32)
            before = graph.constant(f"{name}.before", window - 1, np.int32)
            start = graph.node("Sub", [self.at, before], f"{name}.start")
            start = graph.node("Max", [start, graph.constant("zero_int32", 0, np.int32)], f"{name}.start_inside")
            pages = graph.node("Div", [start, page], f"{name}.pages")
            ends = graph.node("Sub", [ends, graph.node("Mul", [pages, page], f"{name}.unseen")], f"{name}.past_lens")
            tables = self._tables_from(pages, name)
        return replace(self.steps, cu_seqlens=starts, past_lens=ends, page_table=tables)

    def _tables_from(self, pages: ir.Value, name: str) -> ir.Value:
        """The tables without their first `pages` [T]; places that this leaves open hold the last page."""
        graph = self.graph
        width = graph.node("Shape", [self.tables], f"{name}.width", [1], INT64, start=1)
        index = graph.node(
            "Add",
            [_column(graph, pages, name), _numbers(graph, width, f"{name}.numbers", "P")],
            f"{name}.index",
            ["T", "P"],
        )
        most = graph.node("Cast", [width], f"{name}.width_int32", dtype=INT32, to=INT32)
        most = graph.node("Sub", [most, graph.constant("one_int32", 1, np.int32)], f"{name}.last_page")
        index = graph.node("Min", [index, most], f"{name}.index_inside")
        return graph.node("GatherElements", [self.tables, index], f"{name}.page_table", axis=1)

    def previous(self, x: ir.Value, name: str) -> ir.Value:
        """For each row of x [T, hidden] the row before it; zeros for a block's first."""
        return previous_rows(self.graph, x, self._zeros, self.steps.cu_seqlens, name)

    @cached_property
    def _zeros(self) -> ir.Value:
        """A row [hidden] for each sequence."""
        graph = self.graph
        count = graph.node("Shape", [self.steps.past_lens], "block.sequences", [1], INT64)
        width = graph.constant("hidden", [self.hidden], np.int64)
        dims = graph.node("Concat", [count, width], "block.zeros_shape", [2], axis=0)
        return graph.node("ConstantOfShape", [dims], "block.zeros", ["S", self.hidden], FLOAT)

    def predecessors(self, candidates: ir.Value, *, from_anchor: bool) -> ir.Value:
        """The tokens that may stand before what each row drafts: the candidates [T, C] of the row before it.

        Before a block's first draft stands the known token.
        """
        graph = self.graph
        known = _column(graph, graph.node("Gather", [self.ids, self.first], "block.known", ["T"]), "block.known")
        starts = graph.constant("drafting_place", 0 if from_anchor else 1, np.int32)
        is_first = graph.node("LessOrEqual", [self.place, starts], "block.is_first", dtype=BOOL)
        row = graph.node("Add", [self.first, self.place], "block.row")
        row = graph.node("Sub", [row, graph.constant("one_int32", 1, np.int32)], "block.row_before")
        row = graph.node("Max", [row, graph.constant("zero_int32", 0, np.int32)], "block.row_before_inside")
        before = graph.node("Gather", [candidates, row], "block.candidates_before")
        return graph.node(
            "Where",
            [_column(graph, is_first, "block.is_first"), known, before],
            "block.predecessors",
            shape(before),
            INT64,
        )


def block_rows(graph: GraphBuilder, hidden: int, ids: ir.Value, sequences: Sequences) -> BlockRows:
    """The rows of sequences, which may differ in how many they have."""
    rows = _numbers(graph, graph.node("Shape", [ids], "block.count", [1], INT64), "block.rows", "T")
    starts = _slice(graph, sequences.cu_seqlens, "starts", 0, -1)
    ends = _slice(graph, sequences.cu_seqlens, "ends", 1, _TO_THE_END)
    behind = graph.node("GreaterOrEqual", [_column(graph, rows, "block.rows"), ends], "block.behind", ["T", "S"], BOOL)
    behind = graph.node("Cast", [behind], "block.behind_int32", dtype=INT32, to=INT32)
    axis = graph.constant("axis_1", [1], np.int64)
    owner = graph.node("ReduceSum", [behind, axis], "block.owner", ["T"], keepdims=0)
    first, end, past = (
        graph.node("Gather", [value, owner], f"block.{name}", ["T"])
        for name, value in (("first", starts), ("end", ends), ("past", sequences.past_lens))
    )
    place = graph.node("Sub", [rows, first], "block.place")
    at = graph.node("Add", [past, place], "block.at")
    rest = graph.node(
        "Sub", [graph.node("Sub", [end, rows], "block.left"), graph.constant("one_int32", 1, np.int32)], "block.rest"
    )
    if sequences.positions is None:
        sequences = replace(sequences, positions=_positions(graph, at))
    tables = graph.node("Gather", [sequences.page_table, owner], "block.tables", ["T", "P"])
    last = graph.node("Add", [at, rest], "block.last")
    return BlockRows(graph, hidden, ids, sequences, first, place, at, last, tables)


def _positions(graph: GraphBuilder, at: ir.Value) -> ir.Value:
    """Three equal axes, in text."""
    row = graph.node("Unsqueeze", [at, graph.constant("axis_0", [0], np.int64)], "block.position", [1, "T"])
    return graph.node("Concat", [row] * 3, "block.positions", [3, "T"], axis=0)


def _numbers(graph: GraphBuilder, count: ir.Value, name: str, size: str) -> ir.Value:
    """int32 numbers from 0 to below `count` [1]."""
    end = graph.node("Squeeze", [count], f"{name}.end", [])
    zero, one = (graph.constant(f"scalar_{value}", value, np.int64) for value in (0, 1))
    numbers = graph.node("Range", [zero, end, one], f"{name}.int64", [size])
    return graph.node("Cast", [numbers], name, dtype=INT32, to=INT32)


def _column(graph: GraphBuilder, values: ir.Value, name: str) -> ir.Value:
    """Values [T] as [T, 1]."""
    return graph.node("Unsqueeze", [values, graph.constant("axis_1", [1], np.int64)], f"{name}.column", ["T", 1])


def _slice(graph: GraphBuilder, values: ir.Value, name: str, start: int, end: int) -> ir.Value:
    bounds = [graph.constant(f"{name}_{side}", [at], np.int64) for side, at in (("from", start), ("to", end))]
    return graph.node("Slice", [values, *bounds], f"block.{name}", ["S"])
