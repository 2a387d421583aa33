"""The operator of this family: its cost."""

from __future__ import annotations

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator


def _cost(node: Node, work: Workload) -> Cost:
    """Each row multiplies with the keys and the values of all rows, as in one image."""
    out = node.outputs[0]
    rows = out.rows(work)
    return Cost(float32_products=2 * out.item_elements * rows * rows)


OPERATORS = (Operator("PatchAttention", _cost),)
