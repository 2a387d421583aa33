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


def _body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.rms_norm.function import add_rms_norm, rms_norm

    return add_rms_norm if inputs == 3 else rms_norm


def _joined_body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.rms_norm.function import joined_rms_norm

    return joined_rms_norm


OPERATORS = (Operator("RMSNorm", _cost, _body), Operator("JoinedRMSNorm", _cost, _joined_body))
