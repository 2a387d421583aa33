"""The operators of this family: their costs. Portable packages have no block drafters, so there are no bodies."""

from __future__ import annotations

from trigraph.custom_ops.cost import Cost, Node, Workload
from trigraph.custom_ops.operator_type import Operator


def _cost(node: Node, work: Workload) -> Cost:
    """Nothing that the roofline counts: rows stay in the caches."""
    return Cost()


OPERATORS = (Operator("BlockConvolution", _cost), Operator("CandidateEdges", _cost))
