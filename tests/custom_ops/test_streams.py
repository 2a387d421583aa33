"""StreamNorm and StreamMean against their NumPy references, and the bits of their rows."""

from typing import Any

import numpy as np
import pytest

from support.operators.row_bits import run_rows
from support.operators.run import Operator, same_bits
from trigraph.custom_ops.streams.reference import stream_mean, stream_norm

EPS = 1e-6
SIZES = [(4, 2560), (4, 33), (1, 16), (3, 1), (5, 257)]


def draw(rows: int, streams: int, hidden: int) -> list[Any]:
    """x, weight, block and inject."""
    rng = np.random.default_rng(rows + hidden)
    x, block, inject = (
        3 * rng.standard_normal((rows, n), dtype=np.float32) for n in (streams * hidden, hidden, streams)
    )
    return [x, rng.uniform(0.5, 1.5, streams * hidden).astype(np.float32), block, inject]


@pytest.mark.parametrize(("streams", "hidden"), SIZES)
def test_norms(isa: str, streams: int, hidden: int) -> None:
    x, weight, _, _ = draw(13, streams, hidden)
    attributes: dict[str, Any] = {"streams": streams, "eps": EPS}
    outputs = {0: (np.float32, streams * hidden)}
    (y,) = run_rows("StreamNorm", [x], [weight], lambda rows, constants: rows + constants, outputs, attributes)
    np.testing.assert_allclose(y, stream_norm(x, weight, **attributes)[0], rtol=2e-6, atol=1e-7)
    for stream in range(streams):  # each has the bits of a norm of its own
        part = slice(stream * hidden, (stream + 1) * hidden)
        rows, scale = np.ascontiguousarray(x[:, part]), weight[part]
        (alone,) = Operator("RMSNorm", [rows, scale], [np.float32], {"eps": EPS})(rows, scale)
        assert same_bits(np.ascontiguousarray(y[:, part]), alone)


@pytest.mark.parametrize(("streams", "hidden"), SIZES)
def test_norms_of_sums(isa: str, streams: int, hidden: int) -> None:
    x, weight, block, inject = draw(13, streams, hidden)
    attributes: dict[str, Any] = {"streams": streams, "eps": EPS}
    outputs = dict.fromkeys((0, 1), (np.float32, streams * hidden))
    y, total = run_rows(
        "StreamNorm", [x, block, inject], [weight], lambda r, c: [r[0], c[0], r[1], r[2]], outputs, attributes
    )
    expected, expected_total = stream_norm(x, weight, block, inject, **attributes)
    np.testing.assert_allclose(total, expected_total, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("streams", "hidden"), SIZES)
def test_means(isa: str, streams: int, hidden: int) -> None:
    x, _, _, _ = draw(13, streams, hidden)
    logits = x[::-1] * 2
    outputs, attributes = {0: (np.float32, hidden)}, {"streams": streams}
    (y,) = run_rows("StreamMean", [x, logits], [], lambda rows, constants: rows, outputs, attributes)
    np.testing.assert_allclose(y, stream_mean(x, logits, streams=streams), rtol=2e-6, atol=2e-6)


def test_no_rows() -> None:
    x, weight, block, inject = (array[:0] if array.ndim == 2 else array for array in draw(1, 4, 20))
    attributes = {"streams": 4, "eps": EPS}
    found = Operator("StreamNorm", [x, weight, block, inject], [np.float32] * 2, attributes)(x, weight, block, inject)
    assert [array.shape for array in found] == [(0, 80), (0, 80)]
    assert Operator("StreamMean", [x, x], [np.float32], {"streams": 4})(x, x)[0].shape == (0, 20)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 8), (7,), None, None), "weight has 7 values, expected a multiple of 4 streams"),
        (((2, 9), (8,), None, None), r"x has shape \[2, 9\], expected \[2, 8\]"),
        (((2, 8), (8,), (2, 2), None), "block and inject must both be there, or neither"),
        (((2, 8), (8,), (2, 3), (2, 4)), r"block has shape \[2, 3\], expected \[2, 2\]"),
        (((2, 8), (8,), (2, 2), (1, 4)), r"inject has shape \[1, 4\], expected \[2, 4\]"),
    ],
)
def test_errors(shapes: Any, message: str) -> None:
    inputs = [None if shape is None else np.zeros(shape, np.float32) for shape in shapes]
    outputs = [np.float32] * (1 if inputs[2] is None else 2)
    with pytest.raises(Exception, match=rf"trigraph\.StreamNorm: .*{message}"):
        Operator("StreamNorm", inputs, outputs, {"streams": 4, "eps": EPS})(*inputs)


def test_rows_that_are_no_streams() -> None:
    x = np.zeros((2, 7), np.float32)
    with pytest.raises(Exception, match="x has rows of width 7, expected a multiple of 4 streams"):
        Operator("StreamMean", [x, x], [np.float32], {"streams": 4})(x, x)
