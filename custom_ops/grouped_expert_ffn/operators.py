"""The operator of this family: its cost, and its function body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Workload, products
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function

EXPERT_IDS = 1
"""The input that holds the chosen experts, [T, experts of a token]."""
_WITH_SHARED = 8  # inputs
_STACKS = {"gate_type": 3, "down_type": 4, "up_type": 5}  # attribute with the type of each input, [experts, ...]


def _cost(node: Node, work: Workload) -> Cost:
    """The distinct experts that are chosen are read once; each row meets those that it chose."""
    pairs = node.outputs[0].rows(work) * node.given(EXPERT_IDS).item_elements
    total = Cost()
    for kind, index in _STACKS.items():
        stack = node.inputs[index] if index < len(node.inputs) else None
        if stack is not None:
            experts = int(stack.dims[0])
            total += Cost(stack.nbytes * work.experts[node.name] / experts)
            total += products(stack, pairs / experts, node.attributes[kind], node.attributes["activations"])
    return total


def _body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.grouped_expert_ffn import function

    shared = inputs == _WITH_SHARED
    gate, down = attributes["gate_type"], attributes["down_type"]
    if (up := attributes.get("up_type")) is None:
        return (function.fused_and_shared if shared else function.fused)(gate, down)
    return (function.separate_and_shared if shared else function.separate)(gate, up, down)


OPERATORS = (Operator("GroupedExpertFFN", _cost, _body),)
