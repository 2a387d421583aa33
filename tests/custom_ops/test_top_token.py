"""TopToken against its NumPy reference, and the bits of its rows."""

import numpy as np
import pytest

from support.operators.row_bits import Array, run_rows
from support.operators.run import Operator
from trigraph.custom_ops.top_token.reference import top_token


def run(logits: Array) -> list[Array]:
    outputs: dict[int, tuple[type, None]] = {0: (np.int64, None), 1: (np.float32, None)}
    return run_rows("TopToken", [logits], [], lambda rows, _: rows, outputs, {"probability": 1})


@pytest.mark.parametrize("width", [1, 5, 16, 4095, 4096, 4097, 12289, 65536])
def test_against_reference(isa: str, width: int) -> None:
    logits = np.random.default_rng(width).standard_normal((7, width), dtype=np.float32) * 3
    logits[1, -1], logits[2, 0] = 40, 40
    tokens, probability = run(logits)
    expected, wanted = top_token(logits)
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_allclose(probability, wanted, rtol=3e-6)


def test_ties_go_to_the_lowest_id(isa: str) -> None:
    logits = np.random.default_rng(0).integers(-3, 2, (9, 9001)).astype(np.float32)
    logits[0] = 0
    logits[1], logits[1, [4095, 4096, 9000]] = 0, 5
    tokens, _ = run(logits)
    np.testing.assert_array_equal(tokens, logits.argmax(axis=-1))
    assert tokens[0] == 0 and tokens[1] == 4095


def test_without_probability(isa: str) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 5000), dtype=np.float32)
    (tokens,) = Operator("TopToken", [logits], [np.int64], {"probability": 0})(logits, output_shapes=[(3,)])
    np.testing.assert_array_equal(tokens, logits.argmax(axis=-1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_tokens_are_valid_whatever_the_logits_are(isa: str, value: float) -> None:
    logits = np.random.default_rng(0).standard_normal((4, 5000), dtype=np.float32)
    logits[0], logits[1, 4500], logits[2, :4200] = value, value, value
    tokens, _ = Operator("TopToken", [logits], [np.int64, np.float32], {"probability": 1})(logits)
    assert ((tokens >= 0) & (tokens < 5000)).all() and tokens[3] == logits[3].argmax()


@pytest.mark.parametrize(
    ("shape", "message"), [((4,), r"logits has shape \[4\]"), ((2, 0), "logits has rows of width 0")]
)
def test_errors(shape: tuple[int, ...], message: str) -> None:
    logits = np.zeros(shape, np.float32)
    with pytest.raises(Exception, match=rf"trigraph\.TopToken: .*{message}"):
        Operator("TopToken", [logits], [np.int64], {"probability": 0})(logits)
