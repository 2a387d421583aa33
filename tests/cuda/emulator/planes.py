"""Products of prompts with weights as planes of bytes (TRIGRAPH_PLANES=1): the bits of the portable kernels.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuda.emulator.prompts import few_blocks, products  # noqa: F401

from support.operators.block_weights import activations, random_blocks, weights
from support.operators.row_bits import portable_kernels
from support.operators.run import same_bits

KINDS = [("Q4_K", "Q5_K", "Q6_K"), ("Q6_K", "F32", "Q4_K", "Q8_0"), ("Q5_K", "Q4_K", "Q4_K"), ("Q6_K",)]
"""Weights of a launch, whose blocks go from tiles of one type to those of another; some are met in the other way."""


@pytest.fixture(autouse=True)
def planes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIGRAPH_PLANES", "1")


def compare(x: np.ndarray, matrices: list[np.ndarray], types: tuple[str, ...]) -> None:
    with portable_kernels():
        expected = products(x, matrices, types, "cpu")
    for type, one, other in zip(types, products(x, matrices, types, "cuda"), expected, strict=True):
        assert same_bits(one, other), (type, len(x))


@pytest.mark.parametrize("width", [256, 768, 2048, 2560])
@pytest.mark.parametrize("types", KINDS)
def test_products(types: tuple[str, ...], width: int) -> None:
    """Rows that fill tiles of 96 and that do not, and weights that are no multiple of 16."""
    matrices = [weights(type, rows, width) for type, rows in zip(types, (300, 129, 70, 1), strict=False)]
    for rows in (96, 97, 191, 290) if width == 256 else (33, 130):
        compare(activations(rows, width), matrices, types)


@pytest.mark.parametrize("type", ["Q4_K", "Q5_K", "Q6_K"])
def test_extremes(type: str) -> None:
    """All codes and scales, of both signs, and activations whose sums are the largest there are."""
    matrices = [random_blocks(type, 384, 2, seed=1)]
    x = np.ones((100, 512), np.float32) * np.array([1, -1], np.float32).repeat(50)[:, None]
    x[::3, ::2] *= -1
    x[5, 3] = np.inf
    compare(x, matrices, (type,))
    full = np.full_like(matrices[0], 255)  # the largest codes; scales of -1 in Q6_K
    halves = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[type]
    blocks = full.reshape(len(full), 2, -1)
    if type == "Q6_K":
        blocks[..., 192:208] = 0x80
        blocks[::2, :, :192] = 0
    for at in halves:
        blocks[..., at : at + 2] = np.array([0.25], np.float16).view(np.uint8)
    compare(x, [full], (type,))
