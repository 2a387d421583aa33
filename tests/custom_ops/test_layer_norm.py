"""LayerNorm against its NumPy reference and PyTorch, and the bits of its rows."""

from typing import Any

import numpy as np
import pytest

from support.operators.row_bits import run_rows
from support.operators.run import Operator
from trigraph.custom_ops.layer_norm.reference import layer_norm

EPS = 1e-6


def draw(rows: int, width: int) -> tuple[Any, Any, Any]:
    """Rows that lie far from 0, where a variance from sums of squares would lose most of its digits."""
    rng = np.random.default_rng(rows + width)
    x = rng.standard_normal((rows, width), dtype=np.float32) * 3 + 50
    return x, rng.uniform(0.5, 1.5, width).astype(np.float32), rng.standard_normal(width, dtype=np.float32)


@pytest.mark.parametrize("width", [1, 3, 15, 16, 17, 63, 65, 768, 1152])
def test_against_reference(isa: str, width: int) -> None:
    x, weight, bias = draw(37, width)
    outputs = {0: (np.float32, width)}
    (y,) = run_rows("LayerNorm", [x], [weight, bias], lambda rows, constants: rows + constants, outputs, {"eps": EPS})
    np.testing.assert_allclose(y, layer_norm(x, weight, bias, eps=EPS), rtol=2e-5, atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("width", [3, 1152])
def test_pytorch(isa: str, width: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, weight, bias = draw(5, width)
    (y,) = Operator("LayerNorm", [x, weight, bias], [np.float32], {"eps": EPS})(
        x, weight, bias, output_shapes=[x.shape]
    )
    double = (torch.from_numpy(array).double() for array in (weight, bias))
    wanted = torch.nn.functional.layer_norm(torch.from_numpy(x).double(), (width,), *double, EPS)
    np.testing.assert_allclose(y, wanted.numpy(), rtol=2e-5, atol=3e-5)


def test_rows_of_one_value(isa: str) -> None:
    x, one = np.full((2, 20), 7, np.float32), np.ones(20, np.float32)
    operator = Operator("LayerNorm", [x, one, one], [np.float32], {"eps": EPS})
    assert (operator(x, one, one, output_shapes=[x.shape])[0] == 1).all()
    assert operator(x[:0], one, one)[0].shape == (0, 20)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "message"),
    [
        ((3,), (3,), (3,), r"x has shape \[3\]"),
        ((2, 3), (4,), (3,), r"weight has shape \[4\], expected \[3\]"),
        ((2, 3), (3,), (1, 3), r"bias has shape \[1, 3\], expected \[3\]"),
        ((2, 0), (0,), (0,), "rows of width 0"),
    ],
)
def test_errors(x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...], message: str) -> None:
    inputs = [np.zeros(shape, np.float32) for shape in (x, weight, bias)]
    with pytest.raises(Exception, match=rf"trigraph\.LayerNorm: .*{message}"):
        Operator("LayerNorm", inputs, [np.float32], {"eps": EPS})(*inputs)
