"""The operator of this family: its cost, and its function body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function

_STATE = 8  # input


def _cost(node: Node, work: Workload) -> Cost:
    """The state is read and written once a sequence; each token decays, reads and updates it."""
    state = node.given(_STATE)
    return Cost(
        bytes=2 * state.item_elements * state.element_bytes * work.sequences,
        float32_products=3 * state.item_elements * work.tokens,
    )


def _body(attributes: Mapping[str, Any], inputs: int) -> Function | None:
    from trigraph.custom_ops.gated_delta_net.function import gated_delta_net

    return None if attributes.get("gate") == "sigmoid" else gated_delta_net


OPERATORS = (Operator("GatedDeltaNet", _cost, _body),)
