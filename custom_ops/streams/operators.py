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


def _norm_body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.streams.function import add_stream_norm, stream_norm

    return add_stream_norm if inputs == 4 else stream_norm


def _mean_body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.streams.function import stream_mean

    return stream_mean


OPERATORS = (Operator("StreamNorm", _cost, _norm_body), Operator("StreamMean", _cost, _mean_body))
