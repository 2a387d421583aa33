"""DrawTokens against NumPy's draws, to the bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators import Operator
from trigraph.runtime.sampling import draws
from trigraph.runtime.sampling.draws import Filters

FILTERS = [
    Filters(0.7, 20, 0.95, 0.0),
    Filters(1.3, 0, 1.0, 0.0),
    Filters(1.0, 0, 0.9, 0.01),
    Filters(5.0, 3, 1.0, 0.1),
    Filters(0.0, 20, 0.95, 0.0),
]
SEED, POSITION = 2**64 - 7, 41


def run(logits: NDArray[np.float32], filters: Filters, before: list[int] | None = None) -> list[NDArray[np.int64]]:
    real = np.array([filters.temperature, filters.top_p, filters.min_p])
    whole = np.array([filters.top_k, SEED, POSITION], np.uint64).view(np.int64)
    known = None if before is None else np.array(before, np.int64)
    operator = Operator("DrawTokens", [logits, real, whole, known], [np.int64] * (1 if known is None else 2), {})
    return operator(logits, real, whole, known)


def expected(logits: NDArray[np.float32], filters: Filters, position: int) -> int:
    if not filters.temperature:
        return int(logits.argmax()) if np.isfinite(logits.max()) else -1
    found = draws.draw(logits, None, filters, SEED, position)
    return -1 if found is None else found


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", [1, 3, 63, 65, 2048, 5001])
def test_tokens_are_those_of_their_positions(filters: Filters, vocab: int) -> None:
    logits = 3 * np.random.default_rng(vocab).standard_normal((5, vocab), dtype=np.float32)
    (tokens,) = run(logits, filters)
    assert tokens.tolist() == [expected(row, filters, POSITION + i) for i, row in enumerate(logits)]
    for i in range(5):
        assert run(logits[i : i + 1], filters)[0] == expected(logits[i], filters, POSITION)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_without_a_number(filters: Filters, value: float) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 65), dtype=np.float32)
    logits[1] = value
    first, last = expected(logits[0], filters, POSITION), expected(logits[2], filters, POSITION + 2)
    assert run(logits, filters)[0].tolist() == [first, -1, last]
    assert run(logits, filters, [7])[0].tolist() == [first, 0, last], "the graph goes on with these tokens"


def test_tokens_come_behind_those_before(isa: str) -> None:
    logits = np.random.default_rng(0).standard_normal((2, 65), dtype=np.float32)
    for before in ([7], [7, 8, 9]):
        tokens, every = run(logits, FILTERS[0], before)
        first = POSITION + len(before) - 1
        assert tokens.tolist() == [expected(row, FILTERS[0], first + i) for i, row in enumerate(logits)]
        assert every.tolist() == [*before, *tokens]


def test_equal_logits_go_to_the_lowest_id() -> None:
    assert run(np.ones((1, 65), np.float32), FILTERS[-1])[0] == 0


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (Filters(-1.0, 0, 1.0, 0.0), "the temperature is -1; it must be 0 or more"),
        (Filters(float("nan"), 0, 1.0, 0.0), "the temperature is nan"),
        (Filters(1.0, 2**63, 1.0, 0.0), "top-k is -9223372036854775808; it must be 0"),
    ],
)
def test_errors(filters: Filters, message: str) -> None:
    with pytest.raises(Exception, match=rf"trigraph\.DrawTokens: {message}"):
        run(np.zeros((1, 3), np.float32), filters)
