"""The operators of this family: their costs, and their function bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function

_WINDOW = 6  # input


def _rows_cost(node: Node, work: Workload) -> Cost:
    """Nothing that the roofline counts: a few integers a token."""
    return Cost()


def _mix_cost(node: Node, work: Workload) -> Cost:
    """The window is read and written once a sequence."""
    window = node.given(_WINDOW)
    return Cost(bytes=2 * window.item_elements * window.element_bytes * work.sequences)


def _rows_body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.ngrams.function import ngram_rows

    return ngram_rows


def _mix_body(attributes: Mapping[str, Any], inputs: int) -> Function:
    from trigraph.custom_ops.ngrams.function import ngram_mix

    return ngram_mix


OPERATORS = (Operator("NgramRows", _rows_cost, _rows_body), Operator("NgramMix", _mix_cost, _mix_body))
