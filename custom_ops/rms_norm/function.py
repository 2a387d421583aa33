"""RMSNorm and JoinedRMSNorm in standard ONNX operators."""

from trigraph.custom_ops.scripting import Tensor, body, op


@body
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return op.RMSNormalization(x, weight, axis=-1, epsilon=eps)


@body
def add_rms_norm(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    y = op.RMSNormalization(total, weight, axis=-1, epsilon=eps)
    return y, total


@body
def joined_rms_norm(x: Tensor, weight: Tensor, other: Tensor, other_weight: Tensor, eps: float) -> Tensor:
    first = op.RMSNormalization(x, weight, axis=-1, epsilon=eps)
    second = op.RMSNormalization(other, other_weight, axis=-1, epsilon=eps)
    return op.Concat(first, second, axis=1)
