"""TopToken and TopTokens in standard ONNX operators."""

from trigraph.custom_ops.scripting import Tensor, body, op


@body
def top_token(logits: Tensor, probability: int) -> Tensor:
    return op.ArgMax(logits, axis=-1, keepdims=0, select_last_index=0)


@body
def with_probability(logits: Tensor, probability: int) -> tuple[Tensor, Tensor]:
    tokens = op.ArgMax(logits, axis=-1, keepdims=0, select_last_index=0)
    top = op.ReduceMax(op.Softmax(logits, axis=-1), [-1], keepdims=0)
    return tokens, top


@body
def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, ids = op.TopK(logits, op.Reshape(count, [1]), axis=-1)
    return values, ids
