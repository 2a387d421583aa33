"""The operators of this family: their costs, and their function bodies."""

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


def _last_body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.rows.function import last_of_both, last_rows

    return last_of_both if inputs == 4 else last_rows


def _previous_body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.rows.function import previous_rows

    return previous_rows


OPERATORS = (Operator("LastRows", _cost, _last_body), Operator("PreviousRows", _cost, _previous_body))
