"""The operator of this family: its cost, and its function body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function


def _cost(node: Node, work: Workload) -> Cost:
    """Only the rows that are asked for are read."""
    table = node.given(1)
    return Cost(table.item_elements * table.element_bytes * node.outputs[0].rows(work))


def _body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.block_gather.function import block_gather

    return block_gather(attributes["type"])


OPERATORS = (Operator("BlockGather", _cost, _body),)
