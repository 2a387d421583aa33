"""BlockMatMul in standard ONNX operators."""

from functools import cache

from onnxscript import OnnxFunction

from trigraph.custom_ops.blocks.function import UNPACK
from trigraph.custom_ops.scripting import Tensor, body, op


@cache
def block_matmul(type: str) -> OnnxFunction:
    """The body for weights of a ggml type; it takes activations as they are."""
    unpack = UNPACK[type]

    @body
    def block_matmul(x: Tensor, weight: Tensor, type: str, activations: str) -> Tensor:
        return op.Gemm(x, unpack(weight), transB=1)

    return block_matmul
