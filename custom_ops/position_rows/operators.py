"""The operator of this family: its cost, and its function body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function


def _cost(node: Node, work: Workload) -> Cost:
    """Nothing that the roofline counts: rows stay in the caches."""
    return Cost()


def _body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.position_rows.function import position_rows

    return position_rows


OPERATORS = (Operator("PositionRows", _cost, _body),)
