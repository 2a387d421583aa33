"""BlockMatMul in standard ONNX operators."""

from functools import cache

from trigraph.custom_ops.blocks.function import UNPACK
from trigraph.custom_ops.scripting import Function, Tensor, body, op


@cache
def block_matmul(type: str) -> Function:
    """The body for weights of a ggml type; it takes activations as they are."""
    unpack = UNPACK[type]

    @body
    def block_matmul(x: Tensor, weight: Tensor, type: str, activations: str) -> Tensor:
        return op.Gemm(x, unpack(weight), transB=1)

    return block_matmul
