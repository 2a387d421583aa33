"""The operator of this family: its cost, and its function bodies."""

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
    from trigraph.custom_ops.bias_activation import function

    bodies = {
        ("none", 2): function.plain,
        ("none", 3): function.plain_residual,
        ("gelu_tanh", 2): function.gelu_tanh,
        ("gelu_tanh", 3): function.gelu_tanh_residual,
        ("gelu_erf", 2): function.gelu_erf,
        ("gelu_erf", 3): function.gelu_erf_residual,
    }
    return bodies[attributes["activation"], inputs]


OPERATORS = (Operator("BiasActivation", _cost, _body),)
