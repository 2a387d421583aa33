"""The operators of this family: their costs."""

from __future__ import annotations

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator


def _write_cost(node: Node, work: Workload) -> Cost:
    """An entry is written for each row."""
    index = node.given(2)
    return Cost(bytes=int(index.dims[2]) * index.element_bytes * node.given(0).rows(work))


def _select_cost(node: Node, work: Workload) -> Cost:
    """A key of each group is read once a sequence; each row multiplies with all, where it does not see all."""
    index, groups = node.given(2), work.context // node.attributes["group"]
    if groups <= node.attributes["top"]:
        return Cost()
    read = groups * int(index.dims[2]) * index.element_bytes * work.sequences
    return Cost(bytes=read, float32_products=groups * node.given(0).item_elements * node.given(0).rows(work))


OPERATORS = (Operator("PagedIndexWrite", _write_cost), Operator("PagedSelect", _select_cost))
