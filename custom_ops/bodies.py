"""The ONNX function bodies of the operators: what a host without the library runs."""

from collections.abc import Iterator, Mapping
from typing import Any

from onnx import FunctionProto

from trigraph.custom_ops.registry import operator
from trigraph.custom_ops.scripting import Function

# Attributes that choose a body. Each choice is an overload of the operator, as ONNX calls functions of one name.
_CHOOSING = ("type", "gate_type", "up_type", "down_type")


def overload(attributes: Mapping[str, Any]) -> str:
    """The `overload` field of a node with these attributes, and of its body."""
    return "-".join(attributes[name] for name in _CHOOSING if name in attributes)


def bodies(op_type: str, attributes: Mapping[str, Any]) -> list[FunctionProto]:
    """The body of an operator with these attributes, then the functions that it calls."""
    function = operator(op_type).body(attributes)
    proto = function.to_function_proto()
    proto.name, proto.overload = op_type, overload(attributes)
    return [proto, *(called.to_function_proto() for called in _called_by(function))]


def _called_by(function: Function) -> Iterator[Function]:
    for called in function.function_ir.get_called_functions().values():
        yield called
        yield from _called_by(called)
