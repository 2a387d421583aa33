"""Graphs that also run in hosts without the operator library: every operator brings its body along."""

from __future__ import annotations

from typing import Any

from onnx import FunctionProto, ModelProto, NodeProto, helper

from trigraph.custom_ops import DOMAIN
from trigraph.custom_ops.bodies import bodies, overload


def add_bodies(model: ModelProto) -> None:
    """Add the function bodies of the operators that a model uses, and point its nodes to them.

    A host that has registered the library runs the kernels all the same.
    """
    functions: dict[tuple[str, str], FunctionProto] = {}
    for node in model.graph.node:
        if node.domain != DOMAIN:
            continue
        attributes = _attributes(node)
        node.overload = overload(attributes)
        if (node.op_type, node.overload) not in functions:
            for function in bodies(node.op_type, attributes):
                functions.setdefault((function.name, function.overload), function)
    model.functions.extend(functions.values())


def _attributes(node: NodeProto) -> dict[str, Any]:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
