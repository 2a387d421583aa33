"""RMSNorm and JoinedRMSNorm against their NumPy references, and the bits of their rows."""

from typing import Any

import numpy as np
import pytest

from support.operators.row_bits import run_rows
from support.operators.run import Operator
from trigraph.custom_ops.rms_norm.reference import joined_rms_norm, rms_norm

EPS = 1e-6


def draw(rows: int, width: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(rows + width)
    x, residual = (rng.standard_normal((rows, width), dtype=np.float32) * 3 for _ in range(2))
    return x, rng.uniform(0.5, 1.5, width).astype(np.float32), residual


@pytest.mark.parametrize("width", [1, 15, 16, 17, 33, 256, 2048, 5121])
def test_without_a_residual(isa: str, width: int) -> None:
    x, weight, _ = draw(37, width)
    outputs = {0: (np.float32, width)}
    (y,) = run_rows("RMSNorm", [x], [weight], lambda rows, constants: rows + constants, outputs, {"eps": EPS})
    np.testing.assert_allclose(y, rms_norm(x, weight, eps=EPS)[0], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 33, 256, 2048, 5121])
def test_with_a_residual(isa: str, width: int) -> None:
    x, weight, residual = draw(37, width)
    outputs = {0: (np.float32, width), 1: (np.float32, width)}
    y, total = run_rows("RMSNorm", [x, residual], [weight], lambda r, c: [r[0], c[0], r[1]], outputs, {"eps": EPS})
    expected, exact = rms_norm(x, weight, residual, eps=EPS)
    np.testing.assert_array_equal(total, exact)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("width", "other"), [(1, 17), (33, 16), (2048, 2048), (15, 5121)])
def test_joined(isa: str, width: int, other: int) -> None:
    """Each half has the bits of a norm of its own."""
    x, weight, _ = draw(37, width)
    y, other_weight, _ = draw(37, other)
    outputs = {0: (np.float32, width + other)}
    (both,) = run_rows(
        "JoinedRMSNorm", [x, y], [weight, other_weight], lambda r, c: [r[0], c[0], r[1], c[1]], outputs, {"eps": EPS}
    )
    np.testing.assert_allclose(both, joined_rms_norm(x, weight, y, other_weight, eps=EPS), rtol=2e-6, atol=1e-7)
    for half, rows, scale in ((both[:, :width], x, weight), (both[:, width:], y, other_weight)):
        (alone,) = Operator("RMSNorm", [rows, scale], [np.float32], {"eps": EPS})(
            rows, scale, output_shapes=[rows.shape]
        )
        assert alone.tobytes() == np.ascontiguousarray(half).tobytes()


def test_rows_of_zeros(isa: str) -> None:
    x = np.zeros((2, 20), np.float32)
    operator = Operator("RMSNorm", [x, x[0]], [np.float32], {"eps": EPS})
    assert not operator(x, np.ones(20, np.float32), output_shapes=[x.shape])[0].any()
    assert operator(x[:0], np.ones(20, np.float32))[0].shape == (0, 20)


@pytest.mark.parametrize(
    ("x", "weight", "residual", "message"),
    [
        ((3,), (3,), None, r"x has shape \[3\]"),
        ((2, 3), (4,), None, r"weight has shape \[4\], expected \[3\]"),
        ((2, 3), (3,), (1, 3), r"residual has shape \[1, 3\], expected \[2, 3\]"),
        ((2, 0), (0,), None, "rows of width 0"),
    ],
)
def test_errors(x: tuple[int, ...], weight: tuple[int, ...], residual: tuple[int, ...] | None, message: str) -> None:
    inputs = [None if shape is None else np.zeros(shape, np.float32) for shape in (x, weight, residual)]
    outputs = [np.float32] * (1 if residual is None else 2)
    with pytest.raises(Exception, match=rf"trigraph\.RMSNorm: .*{message}"):
        Operator("RMSNorm", inputs, outputs, {"eps": EPS})(*inputs)
