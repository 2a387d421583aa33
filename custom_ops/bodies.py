"""The ONNX function bodies of the operators: what a host without the library runs."""

from collections.abc import Iterator, Mapping
from typing import Any

from onnx import FunctionProto

from trigraph.custom_ops.registry import operator
from trigraph.custom_ops.scripting import Function
from trigraph.models.errors import TrigraphError

# Attributes that choose a body, as the number of inputs does.
_CHOOSING = (
    "types", "type", "gate_type", "up_type", "down_type", "normalize", "probability"
)  # fmt: skip


def overload(attributes: Mapping[str, Any], inputs: int) -> str:
    """The `overload` field of a node, and of its body: ONNX's way to tell functions of one name apart."""
    return "-".join((*(str(attributes[name]) for name in _CHOOSING if name in attributes), str(inputs)))


def bodies(op_type: str, attributes: Mapping[str, Any], inputs: int) -> list[FunctionProto]:
    """The body of an operator with these attributes and so many inputs, then the functions that it calls.

    Raises TrigraphError where there is none.
    """
    make = operator(op_type).body
    function = None if make is None else make(attributes, inputs)
    if function is None:
        raise TrigraphError(f"{op_type} of {inputs} inputs and attributes {dict(attributes)} has no function body")
    proto = function.to_function_proto()
    proto.name, proto.overload = op_type, overload(attributes, inputs)
    return [proto, *(called.to_function_proto() for called in _called_by(function))]


def _called_by(function: Function) -> Iterator[Function]:
    for called in function.function_ir.get_called_functions().values():
        yield called
        yield from _called_by(called)
