"""StreamNorm and StreamMean in standard ONNX operators."""

from trigraph.custom_ops.scripting import Tensor, body, op


@body
def of_streams(x: Tensor, streams: int) -> Tensor:
    """Rows [T, streams x D] as [T, streams, D]."""
    return op.Reshape(x, op.Concat([0], op.Reshape(streams, [1]), [-1], axis=0))


@body
def normed(total: Tensor, weight: Tensor, streams: int, eps: float) -> Tensor:
    """The norm of each stream of total [T, streams, D]: [T, streams x D]."""
    ones = op.Expand(1.0, op.Shape(total, start=2))
    scaled = op.RMSNormalization(total, ones, axis=-1, epsilon=eps)
    return op.Reshape(scaled, [0, -1]) * weight


@body
def stream_norm(x: Tensor, weight: Tensor, streams: int, eps: float) -> Tensor:
    return normed(of_streams(x, streams), weight, streams, eps)


@body
def add_stream_norm(
    x: Tensor, weight: Tensor, block: Tensor, inject: Tensor, streams: int, eps: float
) -> tuple[Tensor, Tensor]:
    factor = 2.0 * op.Sigmoid(inject / op.Cast(streams, to=1))
    total = of_streams(x, streams) + op.Unsqueeze(factor, [2]) * op.Unsqueeze(block, [1])
    y = normed(total, weight, streams, eps)
    sum = op.Reshape(total, [0, -1])
    return y, sum


@body
def stream_mean(x: Tensor, logits: Tensor, streams: int) -> Tensor:
    return op.ReduceMean(of_streams(x * op.Sigmoid(logits), streams), [1], keepdims=0)
