"""Router in standard ONNX operators."""

from trigraph.custom_ops.scripting import Tensor, body, op


@body
def among_chosen(logits: Tensor, k: int, normalize: int) -> tuple[Tensor, Tensor]:
    top, ids = op.TopK(logits, op.Reshape(k, [1]), axis=-1, largest=1, sorted=1)
    weights = op.Softmax(top, axis=-1)
    return ids, weights


@body
def among_all(logits: Tensor, k: int, normalize: int) -> tuple[Tensor, Tensor]:
    weights, ids = op.TopK(op.Softmax(logits, axis=-1), op.Reshape(k, [1]), axis=-1, largest=1, sorted=1)
    return ids, weights
