"""The ONNX function bodies of the operators: what a host without the library runs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onnx import FunctionProto

from trigraph.custom_ops.block_gather.function import block_gather
from trigraph.custom_ops.block_matmul.function import block_matmul
from trigraph.custom_ops.gated_delta_net.function import gated_delta_net
from trigraph.custom_ops.grouped_expert_ffn.function import fused, separate
from trigraph.custom_ops.paged_attention.function import paged_attention, paged_kv_write
from trigraph.custom_ops.scripting import Function

_Attributes = Mapping[str, Any]


def _experts(attributes: _Attributes) -> Function:
    if "up_type" in attributes:
        return separate(attributes["gate_type"], attributes["up_type"], attributes["down_type"])
    return fused(attributes["gate_type"], attributes["down_type"])


_BODIES: Mapping[str, Callable[[_Attributes], Function]] = {
    "BlockMatMul": lambda attributes: block_matmul(attributes["type"]),
    "BlockGather": lambda attributes: block_gather(attributes["type"]),
    "GatedDeltaNet": lambda _: gated_delta_net,
    "GroupedExpertFFN": _experts,
    "PagedKVWrite": lambda _: paged_kv_write,
    "PagedAttention": lambda _: paged_attention,
}
# Attributes that choose a body. Each choice is an overload of the operator, as ONNX calls functions of one name.
_CHOOSING = ("type", "gate_type", "up_type", "down_type")


def overload(attributes: _Attributes) -> str:
    """The `overload` field of a node with these attributes, and of its body."""
    return "-".join(attributes[name] for name in _CHOOSING if name in attributes)


def bodies(op_type: str, attributes: _Attributes) -> list[FunctionProto]:
    """The body of an operator with these attributes, then the functions that it calls."""
    function = _BODIES[op_type](attributes)
    proto = function.to_function_proto()
    proto.name, proto.overload = op_type, overload(attributes)
    return [proto, *(called.to_function_proto() for called in _called_by(function))]


def _called_by(function: Function) -> Iterator[Function]:
    for called in function.function_ir.get_called_functions().values():
        yield called
        yield from _called_by(called)
