"""TopTokens: the largest logits of rows, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.run import THREADS, Operator, same_bits
from trigraph.custom_ops.top_token.reference import top_tokens


def ranked(logits: NDArray[np.float32], count: int, threads: int = 1) -> list[NDArray[Any]]:
    operator = Operator("TopTokens", [logits], [np.float32, np.int64], {"count": count}, threads=threads)
    return operator(logits, output_shapes=[(len(logits), count)] * 2)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("width", "count"), [(1, 1), (7, 7), (500, 16), (512, 32), (4099, 256), (70001, 8)])
@pytest.mark.parametrize("kind", ["random", "few values", "rising", "falling", "infinite", "not numbers"])
def test_matches_the_reference(isa: str, width: int, count: int, kind: str, threads: int) -> None:
    rng = np.random.default_rng(width)
    logits = rng.standard_normal((9, width), dtype=np.float32)
    if kind == "few values":
        logits = np.round(logits)
        logits[logits == 0] = -0.0
    elif kind in ("rising", "falling"):
        logits.sort(-1)
        logits = np.ascontiguousarray(logits[:, :: -1 if kind == "falling" else 1])
    elif kind in ("infinite", "not numbers"):
        logits[:, rng.integers(0, width, width)] = -np.inf
        logits[1, width // 2] = np.inf
        logits[2] = -np.inf
    if kind == "not numbers":
        logits[3:, rng.integers(0, width, width // 2)] = np.nan
        logits[4] = np.nan
    values, ids = ranked(logits, count, threads)
    wanted = top_tokens(logits, count)
    np.testing.assert_array_equal(ids, wanted[1])
    assert same_bits(values, wanted[0] + np.float32(0))


def test_errors() -> None:
    logits = np.zeros((1, 5), np.float32)
    for count in (0, 257):
        with pytest.raises(Exception, match=rf"trigraph\.TopTokens: attribute count is {count}, outside 1 to 256"):
            ranked(logits, count)
    with pytest.raises(Exception, match=r"trigraph\.TopTokens: input logits has rows of width 5, and .* count is 6"):
        ranked(logits, 6)
