"""How function bodies are written: onnxscript functions of standard operators in this project's domain."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import onnxscript
from onnxscript.values import Opset

from trigraph.custom_ops import DOMAIN

# onnxscript's own hints refuse numbers as operands and the unpacking of several outputs.
if TYPE_CHECKING:
    Tensor: TypeAlias = Any
else:
    from onnxscript.onnx_types import TensorType as Tensor

op: Any = onnxscript.opset23
"""The standard operators."""

FLOAT, FLOAT16, DOUBLE = onnxscript.FLOAT.dtype, onnxscript.FLOAT16.dtype, onnxscript.DOUBLE.dtype
INT32, INT64, UINT8 = onnxscript.INT32.dtype, onnxscript.INT64.dtype, onnxscript.UINT8.dtype

Function: TypeAlias = onnxscript.OnnxFunction[..., Any]
"""An ONNX function; called in another one's body, a node of it."""


def body(function: Callable[..., Any]) -> Function:
    """Decorator that makes ONNX functions: parameters annotated `Tensor` are inputs, the others attributes."""
    return onnxscript.script(Opset(DOMAIN, 1), default_opset=op)(function)


@body
def row_positions(cu_seqlens: Tensor, past_lens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each row, as int64 [rows]: its sequence, its number in the sequence, and its position."""
    cu = op.Cast(cu_seqlens, to=INT64)
    rows = op.Range(0, op.Gather(cu, -1), 1)
    begun = op.Cast(op.Unsqueeze(cu[1:], 1) <= rows, to=INT64)  # how many sequences end before each row
    sequence = op.ReduceSum(begun, [0], keepdims=0)
    number = rows - op.Gather(cu, sequence)
    return sequence, number, number + op.Gather(op.Cast(past_lens, to=INT64), sequence)
