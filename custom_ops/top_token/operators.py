"""The operators of this family: their costs, and their function bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function


def _cost(node: Node, work: Workload) -> Cost:
    """Nothing that the roofline counts: logits stay in the caches."""
    return Cost()


def _body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.top_token.function import top_token, with_probability

    return with_probability if attributes["probability"] else top_token


def _ranked_body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.top_token.function import top_tokens

    return top_tokens


OPERATORS = (Operator("TopToken", _cost, _body), Operator("TopTokens", _cost, _ranked_body))
