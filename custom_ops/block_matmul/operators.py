"""The operator of this family: its cost, and its function body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Workload, products
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function


def _cost(node: Node, work: Workload) -> Cost:
    """The weight is read once and meets every row."""
    weight, rows = node.given(1), node.outputs[0].rows(work)
    return Cost(weight.nbytes) + products(weight, rows, node.attributes["type"], node.attributes["activations"])


def _body(attributes: Mapping[str, Any]) -> Function:
    from trigraph.custom_ops.block_matmul.function import block_matmul

    return block_matmul(attributes["type"])


OPERATORS = (Operator("BlockMatMul", _cost, _body),)
