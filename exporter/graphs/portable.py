"""Graphs that also run in hosts without the operator library: every operator brings its body along."""

from __future__ import annotations

import math
from typing import Any

from onnx import FunctionProto, ModelProto, NodeProto, helper

from trigraph.custom_ops import DOMAIN
from trigraph.models.model import Model
from trigraph.models.tensor_types import BLOCK_TYPES

# ONNX Runtime 1.31 computes what depends on constants alone when it opens a graph, and keeps each intermediate result
# until it has done so for all matrices.
_BYTES_OF_A_WEIGHT = 24
_WORTH_A_NOTICE = 1e9


def add_bodies(model: ModelProto) -> None:
    """Add the function bodies of the operators that a model uses, and point its nodes to them.

    A host that has registered the library still runs the kernels.
    """
    # Compiles all bodies, which takes a quarter of a second: only for portable exports.
    from trigraph.custom_ops.bodies import bodies, overload

    functions: dict[tuple[str, str], FunctionProto] = {}
    for node in model.graph.node:
        if node.domain != DOMAIN:
            continue
        attributes = _attributes(node)
        node.overload = overload(attributes, len(node.input))
        if (node.op_type, node.overload) not in functions:
            for function in bodies(node.op_type, attributes, len(node.input)):
                functions.setdefault((function.name, function.overload), function)
    model.functions.extend(functions.values())


def memory_notice(model: Model) -> tuple[str, ...]:
    """One sentence on the memory that unpacked weights take in a host without the library, if it is much."""
    matrices = [tensor for tensor in model.tensors.values() if tensor.type in BLOCK_TYPES and len(tensor.shape) == 2]
    peak = _BYTES_OF_A_WEIGHT * sum(math.prod(tensor.shape) for tensor in matrices)
    if peak < _WORTH_A_NOTICE:
        return ()
    return (f"a host without the operator library takes about {peak / 1e9:.0f} GB to open a graph: it unpacks weights",)


def _attributes(node: NodeProto) -> dict[str, Any]:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
