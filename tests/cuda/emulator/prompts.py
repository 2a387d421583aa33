"""Products and experts of prompts, whose blocks have one tile after the other: the bits of the portable kernels.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.block_weights import activations, weights
from support.operators.expert_layer import Layer
from support.operators.row_bits import portable_kernels
from support.operators.run import Operator, same_bits

KINDS = [("Q4_K", "Q5_K", "Q6_K"), ("Q6_K", "F32", "Q4_K", "Q8_0"), ("Q8_0", "Q4_K", "Q4_K"), ("Q4_K",)]
"""Weights of a launch, whose blocks go from tiles of one type to those of another."""


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few in the emulator that each has many tiles, with the shared memory of sm_90."""
    monkeypatch.setenv("TRIGRAPH_EMULATED_MULTIPROCESSORS", "3")
    monkeypatch.setenv("TRIGRAPH_EMULATED_SHARED_BYTES", str(226 << 10))


@pytest.fixture(autouse=True, params=[32, 64])
def rows_of_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == 64:
        monkeypatch.setenv("TRIGRAPH_TALL_TILES", "1")


def products(x: NDArray[Any], matrices: list[NDArray[Any]], types: tuple[str, ...], library: str) -> list[NDArray[Any]]:
    attributes = {"types": ",".join(types), "activations": "int8"}
    operator = Operator("BlockMatMul", [x, *matrices], [np.float32] * len(types), attributes, library=library)
    return operator(x, *matrices, output_shapes=[(len(x), len(matrix)) for matrix in matrices])


@pytest.mark.parametrize("width", [256, 512, 2048])
@pytest.mark.parametrize("types", KINDS)
def test_products(types: tuple[str, ...], width: int) -> None:
    """Rows that fill tiles and that do not, in more parts than share weights."""
    matrices = [weights(type, rows, width) for type, rows in zip(types, (300, 129, 70, 1), strict=False)]
    for rows in (33, 63, 64, 65, 130, 1100 if width == 256 else 97):
        x = activations(rows, width)
        with portable_kernels():
            expected = products(x, matrices, types, "cpu")
        for type, one, other in zip(types, products(x, matrices, types, "cuda"), expected, strict=True):
            assert same_bits(one, other), (type, rows)


TALL = [1, 3, 0, 57, 63, 64, 65, 129, 130, 200]


def ids_of(counts: list[int], rng: np.random.Generator) -> NDArray[np.int64]:
    """The choice of one expert for each token, in any order."""
    return rng.permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int64)[:, None]


@pytest.mark.parametrize(
    ("types", "ffn"),
    [(("Q4_K", "Q4_K", "Q6_K"), 256), (("Q5_K", "Q6_K", "Q5_K"), 512), (("Q8_0", "Q4_K", "Q8_0"), 256)],
)
def test_experts(types: tuple[str, str, str], ffn: int) -> None:
    """Experts that one token chose, and up to 200 or none; on average fewer than 64, and more."""
    gate, up, down = types
    shape: dict[str, Any] = dict(width=512, ffn=ffn, experts=10, k=1, gate_type=gate, up_type=up, down_type=down)
    rng = np.random.default_rng(ffn)
    for counts in ([1, 3, 0, 8, 9, 17, 25, 63, 65, 130], [130, 1, 33, 32, 31, 64, 2, 0, 24, 16], TALL):
        ids = ids_of(counts, rng)
        x = activations(len(ids), shape["width"])
        weight = rng.uniform(0.1, 1, ids.shape).astype(np.float32)
        with portable_kernels():
            expected = Layer(**shape, activations="int8", library="cpu").run(x, ids, weight)
        layer = Layer(**shape, activations="int8", library="cuda")
        for _ in range(2):  # the second run finds counters as the first one left them
            assert same_bits(layer.run(x, ids, weight), expected), counts
