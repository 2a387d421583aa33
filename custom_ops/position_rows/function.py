"""PositionRows in standard ONNX operators."""

from trigraph.custom_ops.scripting import Tensor, body, op


@body
def position_rows(x: Tensor, bias: Tensor, table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    added = op.Gather(table, rows) * op.Unsqueeze(weights, [2])
    return x + bias + op.ReduceSum(added, [0], keepdims=0)
