"""BlockMatMul and GatedBlockMatMul in standard ONNX operators; they take activations as they are."""

from functools import cache

from trigraph.custom_ops.blocks.formats.function import UNPACK
from trigraph.custom_ops.scripting import Function, Tensor, body, op


@cache
def block_matmul(*types: str) -> Function:
    """The body for weights of one to four ggml types."""
    return (_one, _two, _three, _four)[len(types) - 1](*types)


@cache
def gated_block_matmul(type: str) -> Function:
    """The body for a weight of a ggml type."""
    unpack = UNPACK[type]

    @body
    def gated(gate: Tensor, up: Tensor, weight: Tensor, type: str, activations: str) -> Tensor:
        return op.Gemm(gate * op.Sigmoid(gate) * up, unpack(weight), transB=1)

    return gated


def _one(type: str) -> Function:
    unpack = UNPACK[type]

    @body
    def one(x: Tensor, weight: Tensor, types: str, activations: str) -> Tensor:
        return op.Gemm(x, unpack(weight), transB=1)

    return one


def _two(type: str, type_1: str) -> Function:
    unpack, unpack_1 = UNPACK[type], UNPACK[type_1]

    @body
    def two(x: Tensor, weight: Tensor, weight_1: Tensor, types: str, activations: str) -> tuple[Tensor, Tensor]:
        y = op.Gemm(x, unpack(weight), transB=1)
        y_1 = op.Gemm(x, unpack_1(weight_1), transB=1)
        return y, y_1

    return two


def _three(type: str, type_1: str, type_2: str) -> Function:
    unpack, unpack_1, unpack_2 = UNPACK[type], UNPACK[type_1], UNPACK[type_2]

    @body
    def three(
        x: Tensor, weight: Tensor, weight_1: Tensor, weight_2: Tensor, types: str, activations: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        y = op.Gemm(x, unpack(weight), transB=1)
        y_1 = op.Gemm(x, unpack_1(weight_1), transB=1)
        y_2 = op.Gemm(x, unpack_2(weight_2), transB=1)
        return y, y_1, y_2

    return three


def _four(type: str, type_1: str, type_2: str, type_3: str) -> Function:
    unpack, unpack_1, unpack_2, unpack_3 = UNPACK[type], UNPACK[type_1], UNPACK[type_2], UNPACK[type_3]

    @body
    def four(
        x: Tensor, weight: Tensor, weight_1: Tensor, weight_2: Tensor, weight_3: Tensor, types: str, activations: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y = op.Gemm(x, unpack(weight), transB=1)
        y_1 = op.Gemm(x, unpack_1(weight_1), transB=1)
        y_2 = op.Gemm(x, unpack_2(weight_2), transB=1)
        y_3 = op.Gemm(x, unpack_3(weight_3), transB=1)
        return y, y_1, y_2, y_3

    return four
