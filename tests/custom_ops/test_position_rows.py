"""PositionRows against its NumPy reference and PyTorch's interpolation, the bits of its rows, and its errors."""

from typing import Any

import numpy as np
import pytest

from support.operators.row_bits import run_rows
from support.operators.run import Operator
from trigraph.custom_ops.position_rows.reference import position_rows


def draw(count: int, width: int, table: int = 50) -> list[Any]:
    rng = np.random.default_rng(count + width)
    return [
        rng.standard_normal((count, width), dtype=np.float32),
        rng.standard_normal(width, dtype=np.float32),
        rng.standard_normal((table, width), dtype=np.float32),
        rng.integers(0, table, (4, count), np.int32),
        rng.uniform(0, 1, (4, count)).astype(np.float32),
    ]


@pytest.mark.parametrize("width", [1, 3, 16, 63, 65, 1152])
def test_against_reference(isa: str, width: int) -> None:
    x, bias, table, rows, weights = inputs = draw(37, width)
    (y,) = run_rows(
        "PositionRows", [x, rows.T, weights.T], [bias, table],
        lambda r, c: [r[0], *c, np.ascontiguousarray(r[1].T), np.ascontiguousarray(r[2].T)],
        {0: (np.float32, width)}, {},
    )  # fmt: skip
    np.testing.assert_allclose(y, position_rows(*inputs), rtol=1e-6, atol=2e-6)


def test_pytorch(isa: str) -> None:
    """A table of 8 x 8 entries stretched to 5 x 13 patches, corners on corners."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    side, height, width = 8, 5, 13
    x, bias, table, *_ = draw(height * width, 32, side * side)
    row, column = np.divmod(np.arange(height * width), width)
    at = [place * ((side - 1) / (size - 1)) for place, size in ((row, height), (column, width))]
    low = [np.floor(place).astype(np.int32) for place in at]
    rows, weights = [], []
    for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
        y0, x0 = (np.minimum(one + step, side - 1) for one, step in zip(low, corner, strict=True))
        rows.append(y0 * side + x0)
        shares = (1 - np.abs(place - one - step) for place, one, step in zip(at, low, corner, strict=True))
        weights.append(np.prod(list(shares), axis=0))
    inputs = [x, bias, table, np.array(rows, np.int32), np.array(weights, np.float32)]
    (found,) = Operator("PositionRows", inputs, [np.float32], {})(*inputs, output_shapes=[x.shape])
    square = torch.from_numpy(table).double().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    stretched = torch.nn.functional.interpolate(square, (height, width), mode="bilinear", align_corners=True)
    wanted = stretched[0].permute(1, 2, 0).reshape(height * width, -1).numpy()
    np.testing.assert_allclose(found, wanted + x + bias, rtol=1e-5, atol=1e-5)


def test_no_rows() -> None:
    x, bias, table, rows, weights = draw(3, 5)
    operator = Operator("PositionRows", [x, bias, table, rows, weights], [np.float32], {})
    assert operator(x[:0], bias, table, rows[:, :0], weights[:, :0])[0].shape == (0, 5)


@pytest.mark.parametrize("index", [-1, 50, 2**31 - 1, -(2**31)])
def test_rows_outside_the_table(index: int) -> None:
    inputs = draw(7, 33)
    operator = Operator("PositionRows", inputs, [np.float32], {})
    inputs[3][2, 5] = index
    with pytest.raises(Exception, match=rf"input rows\[2\]\[5\] is {index}, outside the 50 rows of the table"):
        operator(*inputs)


@pytest.mark.parametrize(
    ("at", "shape", "message"),
    [
        (0, (7,), r"x has shape \[7\]"),
        (1, (32,), r"bias has shape \[32\], expected \[33\]"),
        (2, (50, 32), r"table has shape \[50, 32\], expected \[\*, 33\]"),
        (3, (3, 7), r"rows has shape \[3, 7\], expected \[4, 7\]"),
        (4, (4, 6), r"weights has shape \[4, 6\], expected \[4, 7\]"),
    ],
)
def test_errors(at: int, shape: tuple[int, ...], message: str) -> None:
    inputs = draw(7, 33)
    inputs[at] = np.zeros(shape, inputs[at].dtype)
    with pytest.raises(Exception, match=rf"trigraph\.PositionRows: input {message}"):
        Operator("PositionRows", inputs, [np.float32], {})(*inputs)
