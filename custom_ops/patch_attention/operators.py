"""The operator of this family: its cost, and its function body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function


def _cost(node: Node, work: Workload) -> Cost:
    """Each row multiplies with the keys and the values of all rows, as in one image."""
    out = node.outputs[0]
    rows = out.rows(work)
    return Cost(float32_products=2 * out.item_elements * rows * rows)


def _body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.patch_attention.function import patch_attention

    return patch_attention


OPERATORS = (Operator("PatchAttention", _cost, _body),)
