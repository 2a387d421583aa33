"""Log-probabilities of tokens: against decimal arithmetic, and the same bits on every machine."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from numpy.typing import NDArray

from trigraph.runtime.requests.logprobs import token_logprob


def row(vocab: int, scale: float = 3.0) -> NDArray[np.float32]:
    return (scale * np.random.default_rng(vocab).standard_normal(vocab)).astype(np.float32)


def decimal_logprob(logits: NDArray[np.float32], token: int) -> float:
    with localcontext(prec=40):
        values = [Decimal(value) for value in logits.tolist()]
        return float(values[token] - sum((value.exp() for value in values if value.is_finite()), Decimal(0)).ln())


@pytest.mark.parametrize("scale", [0.0, 1e-3, 3.0, 200.0])
@pytest.mark.parametrize("vocab", [1, 2, 63, 3000])
def test_equals_decimal_arithmetic(vocab: int, scale: float) -> None:
    logits = row(vocab, scale)
    for token in {0, vocab // 2, vocab - 1, int(logits.argmax())}:
        expected = decimal_logprob(logits, token)
        # A rounding of each of largest, logarithm and difference, at the size of the logits.
        assert token_logprob(logits, token, 0).logprob == pytest.approx(
            expected, rel=4e-16, abs=1e-15 * (8 + float(np.abs(logits).max()))
        )


@pytest.mark.parametrize("vocab", [16383, 16384, 16385, 40000])
def test_blocks_of_a_large_vocabulary(vocab: int) -> None:
    """All alike: the sum is their number."""
    logits = np.full(vocab, 3.5, np.float32)
    for token in (0, vocab - 1):
        assert token_logprob(logits, token, 0).logprob == pytest.approx(-math.log(vocab), rel=1e-15)


def test_banned_tokens_have_no_share() -> None:
    logits = row(100)
    logits[::2] = -np.inf
    found = token_logprob(logits, 1, 0).logprob
    assert found == token_logprob(logits[1::2].copy(), 0, 0).logprob
    assert token_logprob(logits, 2, 0).logprob == -math.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_has_no_logarithm(bad: float) -> None:
    logits = row(100)
    logits[7] = bad
    assert math.isnan(token_logprob(logits, 3, 0).logprob)


def test_top_tokens_come_with_theirs() -> None:
    logits = row(3000)
    found = token_logprob(logits, 5, 4)
    assert [token for token, _ in found.top] == np.argsort(-logits, kind="stable")[:4].tolist()
    assert all(value == token_logprob(logits, token, 0).logprob for token, value in found.top)


def test_the_same_bits_on_every_machine() -> None:
    """Recorded: no library's exponential, logarithm or sum decides."""
    logits = (np.arange(40000) * 7919 % 6000).astype(np.float32) / np.float32(300)
    assert [token_logprob(logits, token, 0).logprob.hex() for token in (0, 1, 39999)] == [
        "-0x1.b997cbe9f1dd4p+4",
        "-0x1.533f0ce9f1dd4p+4",
        "-0x1.b545e061f1dd4p+4",
    ]
