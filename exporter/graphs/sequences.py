"""Which rows of a step belong to which sequence; picking and shifting them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import FLOAT, INT32, GraphBuilder, shape


@dataclass(frozen=True)
class Sequences:
    """The inputs that give each sequence its rows, its first position, and its KV pages."""

    cu_seqlens: ir.Value
    past_lens: ir.Value
    page_table: ir.Value
    positions: ir.Value | None = None
    """The position of each row, by axis [3, T], in graphs for images; else its place in the sequence."""
    last_positions: ir.Value | None = None
    """The position of each sequence's last row, [3, S], where `last_rows` are still placed: in a draft."""


def last_rows(
    graph: GraphBuilder, sequences: Sequences, rows: list[ir.Value], name: str
) -> tuple[Sequences, list[ir.Value]]:
    """The last row of each sequence in one or two tensors [T, D], and the step that has only those rows."""
    outputs = [graph.value(f"{name}.cu_seqlens", INT32, ["S+1"]), graph.value(f"{name}.past_lens", INT32, ["S"])]
    outputs += [graph.value(f"{value.name}.last", FLOAT, ["S", *shape(value)[1:]]) for value in rows]
    graph.multi_node("LastRows", [sequences.cu_seqlens, sequences.past_lens, *rows], name, outputs, DOMAIN)
    last = sequences.last_positions
    return replace(sequences, cu_seqlens=outputs[0], past_lens=outputs[1], positions=last), outputs[2:]


def previous_rows(graph: GraphBuilder, x: ir.Value, before: ir.Value, cu_seqlens: ir.Value, name: str) -> ir.Value:
    """For each row of x [T, D] the row before it; for a sequence's first row, its row of `before` [S, D]."""
    return graph.node("PreviousRows", [x, before, cu_seqlens], name, domain=DOMAIN)
