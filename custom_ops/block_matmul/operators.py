"""The operators of this family: their costs, and their function bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Tensor, Workload, products
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function


def _weight_cost(weight: Tensor, type: str, node: Node, work: Workload) -> Cost:
    """A weight is read once and meets every row."""
    return Cost(weight.nbytes) + products(weight, node.outputs[0].rows(work), type, node.attributes["activations"])


def _cost(node: Node, work: Workload) -> Cost:
    """All weights of the node."""
    types = node.attributes["types"].split(",")
    return sum((_weight_cost(node.given(1 + i), type, node, work) for i, type in enumerate(types)), Cost())


def _gated_cost(node: Node, work: Workload) -> Cost:
    return _weight_cost(node.given(2), node.attributes["type"], node, work)


def _body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.block_matmul.function import block_matmul

    return block_matmul(*attributes["types"].split(","))


def _gated_body(attributes: Mapping[str, Any], inputs: int) -> Function | None:
    from trigraph.custom_ops.block_matmul.function import gated_block_matmul

    return None if "scale" in attributes else gated_block_matmul(attributes["type"])


OPERATORS = (Operator("BlockMatMul", _cost, _body), Operator("GatedBlockMatMul", _gated_cost, _gated_body))
