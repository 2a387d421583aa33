"""Products on every instruction set, and on CUDA, against the portable kernels, which define the bits."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.block_weights import BLOCK, TYPES, MatMul, activations, random_blocks, weights
from support.operators.run import THREADS, same_bits
from trigraph.models.synth.blocks import HALVES

WIDTHS = {
    1: (1, 77, 1027),
    32: (32, 288, 1056),
    64: (64, 320, 1088),
    128: (128, 640, 1152),
    256: (256, 512, 1024, 1280, 2048, 2560, 3072),
}
ROWS = 40
FEW = (1, 2, 3, 5, 8, 9, 16, 17, ROWS)


@cache
def matmul(isa: str, type: str, kind: str, threads: int = 1) -> MatMul:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIGRAPH_ISA", "" if isa == "cuda" else isa)
        return MatMul(type, kind, threads, "cuda" if isa == "cuda" else "cpu")


@cache
def expected(type: str, kind: str, rows: int, width: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """A matrix of weights, and its products with `ROWS` activation rows."""
    weight = weights(type, rows, width)
    return weight, matmul("portable", type, kind)(activations(ROWS, width), weight)


def sizes(isa: str, width: int) -> tuple[Sequence[int], Sequence[int]]:
    """How many activation rows and weight rows at a time: of the former every number, where that takes no minutes.

    The emulator of CUDA is slow, as is the portable set, whose tiles are of two and three rows for any width.
    """
    if isa == "cuda":
        return range(1, ROWS + 1) if width < 256 else FEW, (3, 65)
    if isa == "portable" and width > 512:
        return FEW, (3, 17)
    return range(1, ROWS + 1), (1, 3, 17, 65)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("type", TYPES)
def test_equal_to_portable(isa: str, type: str, kind: str) -> None:
    """Any number of activation rows and of weight rows, of any width: a row's bits are its own."""
    for width in WIDTHS[BLOCK[type]]:
        x = activations(ROWS, width)
        counts, weight_rows = sizes(isa, width)
        for rows in weight_rows:
            weight, whole = expected(type, kind, rows, width)
            for count in counts:
                y = matmul(isa, type, kind)(x[:count], weight)
                assert same_bits(y, whole[:count]), (width, rows, count)
            for row in range(0, ROWS, 7):
                alone = matmul(isa, type, kind)(x[row : row + 1].copy(), weight)
                assert same_bits(alone, whole[row : row + 1]), (width, rows, row)
            for threads in THREADS[1:]:
                assert same_bits(matmul(isa, type, kind, threads)(x, weight), whole)


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("type", HALVES)
def test_random_bits(isa: str, type: str, kind: str) -> None:
    """Every code, scale and min, and halves of any size, with the largest activation codes."""
    width = 1024
    weight = random_blocks(type, 37, width // BLOCK[type], seed=5)
    x = activations(9, width)
    x[3:6] = np.where(np.random.default_rng(6).random((3, width)) < 0.5, -1, 1)
    assert same_bits(matmul(isa, type, kind)(x, weight), matmul("portable", type, kind)(x, weight))


def summed_in_order(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """x W^T in the order of additions that `float_products.h` defines, for integers of up to 12 bits.

    Their products and sums are exact in float64, so that one rounding to float32 makes a fused multiply-add of them.
    """
    fill = ((0, 0), (0, -x.shape[1] % 128))
    rows = np.pad(x, fill).astype(np.float64).reshape(len(x), 1, -1, 8, 16)  # [T, 1, chains, 8, lanes]
    columns = np.pad(weight, fill).astype(np.float64).reshape(1, len(weight), -1, 8, 16)
    products = rows * columns
    total = np.zeros((len(x), len(weight), 16), np.float32)
    for c in range(products.shape[2]):
        chain = products[:, :, c, 0].astype(np.float32)
        for v in range(1, 8):
            chain = (products[:, :, c, v] + chain).astype(np.float32)
        total = chain + total
    for half in (8, 4, 2, 1):
        total = total[..., :half] + total[..., half:]
    return np.ascontiguousarray(total[..., 0])


@pytest.mark.parametrize("type", ["F32", "F16"])
@pytest.mark.parametrize("width", [5, 128, 200, 1152])
def test_order_of_float32_additions(isa: str, type: str, width: int) -> None:
    """Tiles of any size add in one order. Few roundings agree by chance: an order that differs changes most results."""
    rng = np.random.default_rng(width)
    x = rng.integers(-2047, 2048, (67, width)).astype(np.float32)
    weight = rng.integers(-2047, 2048, (37, width)).astype(np.float32)
    expected = summed_in_order(x, weight)
    assert width < 200 or (expected != x @ weight.T).mean() > 0.2
    stored = weight.astype(np.float16) if type == "F16" else weight
    for rows in (1, 2, 3, 4, 5, 6, 64, 65, 66, 67):
        for columns in (1, 3, 5, 17, 37):
            y = matmul(isa, type, "float32")(x[:rows], stored[:columns])
            assert same_bits(y, np.ascontiguousarray(expected[:rows, :columns])), (rows, columns)
