"""The operators of this family: their costs."""

from __future__ import annotations

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator

_WINDOW = 6  # input


def _rows_cost(node: Node, work: Workload) -> Cost:
    """Nothing that the roofline counts: a few integers a token."""
    return Cost()


def _mix_cost(node: Node, work: Workload) -> Cost:
    """The window is read and written once a sequence."""
    window = node.given(_WINDOW)
    return Cost(bytes=2 * window.item_elements * window.element_bytes * work.sequences)


OPERATORS = (Operator("NgramRows", _rows_cost), Operator("NgramMix", _mix_cost))
