"""BiasActivation against its NumPy reference and PyTorch, the error of its functions, and the bits of its rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.row_bits import run_rows
from support.operators.run import Operator
from trigraph.custom_ops.bias_activation.reference import bias_activation

ACTIVATIONS = ["none", "gelu_tanh", "gelu_erf"]
ALL = pytest.mark.parametrize("activation", ACTIVATIONS)
WIDTHS = [1, 3, 16, 63, 65, 1152, 4304]


def draw(rows: int, width: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(rows + width)
    x, residual = (rng.standard_normal((rows, width), dtype=np.float32) * 4 for _ in range(2))
    return x, rng.standard_normal(width, dtype=np.float32), residual


def of_values(activation: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The activation of single values."""
    x = x.reshape(1, -1)
    bias = np.zeros(x.shape[1], np.float32)
    operator = Operator("BiasActivation", [x, bias], [np.float32], {"activation": activation})
    return np.asarray(operator(x, bias, output_shapes=[x.shape])[0][0])


@ALL
@pytest.mark.parametrize("width", WIDTHS)
def test_against_reference(isa: str, width: int, activation: str) -> None:
    x, bias, residual = draw(11, width)
    attributes, outputs = {"activation": activation}, {0: (np.float32, width)}
    (y,) = run_rows("BiasActivation", [x], [bias], lambda r, c: [r[0], c[0]], outputs, attributes)
    np.testing.assert_allclose(y, bias_activation(x, bias, activation=activation), rtol=1e-6, atol=1e-6)
    (y,) = run_rows("BiasActivation", [x, residual], [bias], lambda r, c: [r[0], c[0], r[1]], outputs, attributes)
    np.testing.assert_allclose(y, bias_activation(x, bias, residual, activation=activation), rtol=1e-6, atol=2e-6)


def test_the_error_of_erf(isa: str) -> None:
    """gelu_erf gives erf(x / sqrt(2)) = 2 y / x - 1, which is within 2e-7 of the true value."""
    x = np.concatenate([np.linspace(-14, 14, 100001), np.logspace(-3, 1.2, 5000)]).astype(np.float32)
    x = x[np.abs(x) > 1e-3]
    y = of_values("gelu_erf", x).astype(np.float64)
    wanted = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.tolist()])
    rounding = np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64)  # of y itself
    assert ((np.abs(y - wanted) - rounding) / np.abs(x / 2)).max() < 2e-7


def test_the_error_of_tanh(isa: str) -> None:
    x = np.concatenate([np.linspace(-14, 14, 100001), np.logspace(-3, 1.2, 5000)]).astype(np.float32)
    y = of_values("gelu_tanh", x).astype(np.float64)
    wide = x.astype(np.float64)
    wanted = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert (np.abs(y - wanted) <= 5e-7 * np.maximum(np.abs(wanted), 0.1)).all()


@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_extreme_values(isa: str, activation: str) -> None:
    x = np.array([np.inf, 3e38, -np.inf, -3e38, -100, -13, 0.0, np.nan], np.float32)
    y = of_values(activation, x)
    assert y[0] == np.inf and y[1] == np.float32(3e38) and np.isnan(y[7])
    assert (np.abs(y[2:7]) < 1e-30).all()


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_pytorch(isa: str, activation: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = draw(7, 65)[0]
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    wanted = torch.nn.functional.gelu(torch.from_numpy(x).double(), approximate=approximate)
    np.testing.assert_allclose(of_values(activation, x.reshape(-1)), wanted.numpy().reshape(-1), rtol=1e-6, atol=1e-6)


def test_no_rows_and_no_columns() -> None:
    x, bias = np.zeros((3, 4), np.float32), np.zeros(4, np.float32)
    operator = Operator("BiasActivation", [x, bias], [np.float32], {"activation": "gelu_erf"})
    assert operator(x[:0], bias)[0].shape == (0, 4)
    assert operator(x[:, :0], bias[:0])[0].shape == (3, 0)


@pytest.mark.parametrize(
    ("x", "bias", "residual", "message"),
    [
        ((3,), (3,), None, r"x has shape \[3\]"),
        ((2, 3), (4,), None, r"bias has shape \[4\], expected \[3\]"),
        ((2, 3), (3,), (1, 3), r"residual has shape \[1, 3\], expected \[2, 3\]"),
    ],
)
def test_errors(x: tuple[int, ...], bias: tuple[int, ...], residual: tuple[int, ...] | None, message: str) -> None:
    inputs = [None if shape is None else np.zeros(shape, np.float32) for shape in (x, bias, residual)]
    with pytest.raises(Exception, match=rf"trigraph\.BiasActivation: .*{message}"):
        Operator("BiasActivation", inputs, [np.float32], {"activation": "none"})(*inputs)


def test_other_activations_are_refused() -> None:
    x = np.zeros((1, 1), np.float32)
    with pytest.raises(Exception, match="attribute activation is relu, expected none, gelu_tanh or gelu_erf"):
        Operator("BiasActivation", [x, x[0]], [np.float32], {"activation": "relu"})
