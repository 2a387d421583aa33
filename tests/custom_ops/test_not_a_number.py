"""What is promised of NaN: where it is, and every other bit; which NaN it is is the processor's own choice."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.block_weights import MatMul, activations, random_blocks, weights
from support.operators.run import same_bits
from trigraph.models.synth.blocks import HALVES

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_K", "IQ3_S"]
BAD = np.array([np.nan, -np.nan, np.inf, -np.inf], np.float16)
WIDTH, ROWS, TOKENS = 512, 40, 9


def broken(type: str, seed: int) -> NDArray[np.generic]:
    """Weights of which a tenth of the rows hold infinities and NaNs of several payloads."""
    rng = np.random.default_rng(seed)
    found = weights(type, ROWS, WIDTH).copy()
    rows = rng.choice(ROWS, ROWS // 10, replace=False)
    if type in HALVES:
        size = random_blocks(type, 1, 1, 0).shape[1]
        raw = found.view(np.uint8).reshape(ROWS, -1, size)
        for row in rows:
            offset, block = rng.choice(HALVES[type]), rng.integers(raw.shape[1])
            raw[row, block, offset : offset + 2] = BAD[rng.integers(len(BAD))].reshape(1).view(np.uint8)
        return found
    for row in rows:
        bad = BAD[rng.integers(len(BAD))]
        bits = np.float32(bad).view(np.uint32) >> 16 if type == "BF16" else bad
        found[row, rng.integers(WIDTH)] = bits
    return found


def one_nan(y: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same with one kind of NaN."""
    return np.where(np.isnan(y), np.float32(np.nan), y)


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("type", TYPES)
def test_nan_is_in_the_same_places(isa: str, type: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every instruction set, and for one row of activations as for nine."""
    seen = 0
    for seed in range(4):
        weight, x = broken(type, seed), activations(TOKENS, WIDTH)
        x[seed % TOKENS, seed] = BAD[seed]
        monkeypatch.setenv("TRIGRAPH_ISA", "portable")
        expected = one_nan(MatMul(type, kind)(x, weight))
        monkeypatch.setenv("TRIGRAPH_ISA", isa)
        matmul = MatMul(type, kind)
        assert same_bits(one_nan(matmul(x, weight)), expected)
        for row in range(TOKENS):
            assert same_bits(one_nan(matmul(x[row : row + 1], weight)), expected[row : row + 1])
        seen += int(np.isnan(expected).sum())
    assert seen > 100
