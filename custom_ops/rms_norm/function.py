"""RMSNorm in standard ONNX operators."""

from trigraph.custom_ops.scripting import Tensor, body, op


@body
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return op.RMSNormalization(x, weight, axis=-1, epsilon=eps)


@body
def add_rms_norm(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    y = op.RMSNormalization(total, weight, axis=-1, epsilon=eps)
    return y, total
