"""LayerNorm in standard ONNX operators."""

from trigraph.custom_ops.scripting import Tensor, body, op


@body
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return op.LayerNormalization(x, weight, bias, axis=-1, epsilon=eps)
