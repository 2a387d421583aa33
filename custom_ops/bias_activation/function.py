"""BiasActivation in standard ONNX operators, by activation and with or without a residual."""

from trigraph.custom_ops.scripting import Tensor, body, op


@body
def plain(x: Tensor, bias: Tensor) -> Tensor:
    return x + bias


@body
def gelu_tanh(x: Tensor, bias: Tensor) -> Tensor:
    return op.Gelu(x + bias, approximate="tanh")


@body
def gelu_erf(x: Tensor, bias: Tensor) -> Tensor:
    return op.Gelu(x + bias)


@body
def plain_residual(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return x + bias + residual


@body
def gelu_tanh_residual(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return op.Gelu(x + bias, approximate="tanh") + residual


@body
def gelu_erf_residual(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return op.Gelu(x + bias) + residual
