"""Products on every instruction set, and on CUDA, against the portable kernels, which define the bits."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from support.block_weights import BLOCK, TYPES, MatMul, activations, random_blocks, weights
from support.operators import same_bits
from trigraph.models.synth.blocks import HALVES

WIDTHS = {
    1: (1, 77, 1027),
    32: (32, 288, 1056),
    64: (64, 320, 1088),
    128: (128, 640, 1152),
    256: (256, 512, 1024, 1280, 2048, 2560, 3072),
}
ROWS = 40


@cache
def matmul(isa: str, type: str, kind: str, threads: int = 1) -> MatMul:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIGRAPH_ISA", "" if isa == "cuda" else isa)
        return MatMul(type, kind, threads, "cuda" if isa == "cuda" else "cpu")


@cache
def expected(type: str, kind: str, rows: int, width: int) -> NDArray[np.float32]:
    return matmul("portable", type, kind)(activations(ROWS, width), weights(type, rows, width))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("type", TYPES)
def test_equal_to_portable(isa: str, type: str, kind: str) -> None:
    """Any number of activation rows and of weight rows, of any width: a row's bits are its own."""
    for width in WIDTHS[BLOCK[type]]:
        x = activations(ROWS, width)
        # The emulator of CUDA is slow.
        counts = range(1, ROWS + 1) if isa != "cuda" or width < 256 else (1, 2, 3, 5, 8, 9, 16, 17, ROWS)
        for rows in (3, 65) if isa == "cuda" else (1, 3, 17, 65):
            weight, whole = weights(type, rows, width), expected(type, kind, rows, width)
            for count in counts:
                y = matmul(isa, type, kind)(x[:count], weight)
                assert same_bits(y, whole[:count]), (width, rows, count)
            for row in range(0, ROWS, 7):
                alone = matmul(isa, type, kind)(x[row : row + 1].copy(), weight)
                assert same_bits(alone, whole[row : row + 1]), (width, rows, row)
            assert same_bits(matmul(isa, type, kind, 2)(x, weight), whole)


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("type", HALVES)
def test_random_bits(isa: str, type: str, kind: str) -> None:
    """Every code, scale and min, and halves of any size, with the largest activation codes."""
    width = 1024
    weight = random_blocks(type, 37, width // BLOCK[type], seed=5)
    x = activations(9, width)
    x[3:6] = np.where(np.random.default_rng(6).random((3, width)) < 0.5, -1, 1)
    assert same_bits(matmul(isa, type, kind)(x, weight), matmul("portable", type, kind)(x, weight))
