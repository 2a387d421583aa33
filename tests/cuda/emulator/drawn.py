"""Tokens drawn on a device: what NumPy draws from the same rows, to the bit.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from trigraph.custom_ops import library_path
from trigraph.runtime.device.cuda.array import CudaArray
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.cuda.sampler import CudaSampler
from trigraph.runtime.device.exchange import Exchange
from trigraph.runtime.device.sampler import Sample, SamplingParameters
from trigraph.runtime.sampling import draws

FILTERS = [
    SamplingParameters(0.7, 20, 0.95, 0.0),
    SamplingParameters(1.3, 1, 1.0, 0.0),
    SamplingParameters(5.0, 128, 0.9, 0.0),
    SamplingParameters(2.0, 40, 1.0, 0.1),
    SamplingParameters(1e-6, 20, 1.0, 0.0),
    SamplingParameters(0.6, 64, 0.5, 0.05),
]
WIDTHS = (1, 31, 128, 4095, 4096, 4097, 12288, 20000)
Ways = Sequence[tuple[SamplingParameters, int, int]]
"""Parameters, seed and position of each row."""


def on_device(library: CudaLibrary, rows: NDArray[np.generic]) -> CudaArray:
    """A copy of some rows."""
    memory = CudaArray(library, rows.shape, rows.dtype)
    library.copy(memory.address, rows.ctypes.data, rows.nbytes)
    library.wait()
    return memory


def drawn(logits: NDArray[np.float32], ways: Ways, only_drawn: bool = True) -> list[int]:
    """The tokens that the device draws from the rows [n, width], by filters, seed and position."""
    library = CudaLibrary(library_path("cuda"))
    sampler = CudaSampler(library, len(logits), 1, logits.shape[1])
    given = [Sample(filters._replace(seed=seed), position, only_drawn) for filters, seed, position in ways]
    sampler.begin(given)
    tokens = np.where(np.isnan(logits).any(1), 0, logits.argmax(1))
    results = {"logits": on_device(library, logits), "tokens": on_device(library, tokens)}
    sampler.sample(Exchange({}, results), len(logits))
    found = sampler.read()
    library.wait()
    return [int(token) for token in found]


def expected(logits: NDArray[np.float32], ways: Ways) -> list[int]:
    found = [
        draws._draw(row, None, filters._replace(seed=seed), position)
        for row, (filters, seed, position) in zip(logits, ways, strict=True)
    ]
    return [-1 if token is None else token for token in found]


@pytest.mark.parametrize("width", WIDTHS)
def test_draws_are_those_of_the_host(width: int) -> None:
    """Rows with ties and with tokens that are banned, alone and together."""
    for seed in range(3):
        rng = np.random.default_rng(width + seed)
        rows = (3 * rng.standard_normal((len(FILTERS), width))).astype(np.float32)
        rows[1::2] = np.round(rows[1::2])
        rows[2::3, 1::2] = -np.inf
        ways = [(filters, 2**64 - 1 - seed, 2**20 * seed + i) for i, filters in enumerate(FILTERS)]
        together = drawn(rows, ways)
        assert together == expected(rows, ways)
        assert together == [drawn(rows[i : i + 1], ways[i : i + 1])[0] for i in range(len(rows))]


def test_large_logits_side_by_side() -> None:
    """The draw looks for its candidates where a part of a row is largest; here they are all in few parts."""
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((3, 300_000)).astype(np.float32)
    rows[0].reshape(-1, 4)[::256] += 20
    rows[1].reshape(-1, 4)[1::256] = 9
    rows[1].reshape(-1, 4)[255::256] = 9
    rows[2, 100:5000] = np.linspace(5, 6, 4900)
    for filters in (FILTERS[0], FILTERS[2]):
        ways = [(filters, 5, position) for position in range(len(rows))]
        assert drawn(rows, ways) == expected(rows, ways)


def test_more_rows_than_a_launch_takes() -> None:
    rows = np.random.default_rng(1).standard_normal((70, 300)).astype(np.float32)
    ways = [(FILTERS[0], 5, position) for position in range(len(rows))]
    assert drawn(rows, ways) == expected(rows, ways)


def test_temperature_0_takes_the_tokens_of_the_step() -> None:
    rows = np.random.default_rng(2).standard_normal((3, 5000)).astype(np.float32)
    greedy, likeliest = SamplingParameters(0.0, 20, 0.9, 0.0), SamplingParameters(0.0, 0, 1.0, 0.0)
    ways = [(greedy, 5, 7), (FILTERS[0], 5, 8), (likeliest, 5, 9)]
    best = rows.argmax(1).tolist()
    assert drawn(rows, ways) == [best[0], expected(rows[1:2], ways[1:2])[0], best[2]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_without_a_finite_largest_logit(value: float) -> None:
    """NaN wherever it is; the next row is drawn as ever."""
    rows = np.random.default_rng(3).standard_normal((2, 9000)).astype(np.float32)
    rows[0, 8500 if value != -np.inf else slice(None)] = value
    ways = [(FILTERS[0], 1, 2)] * 2
    assert drawn(rows, ways) == expected(rows, ways)
    assert drawn(rows, ways)[0] == -1
    assert drawn(rows, ways, only_drawn=False)[0] == (0 if value != np.inf else 8500)


def test_what_a_device_can_draw() -> None:
    sampler = CudaSampler(CudaLibrary(library_path("cuda")), 1, 1, 1 << 20)
    assert sampler.supports(SamplingParameters(0.0, 0, 1.0, 0.0, 0))
    assert sampler.supports(SamplingParameters(1.0, 128, 1.0, 0.0, 0))
    assert not sampler.supports(SamplingParameters(1.0, 129, 1.0, 0.0, 0))
    assert not sampler.supports(SamplingParameters(1.0, 0, 0.9, 0.0, 0))
    wide = CudaSampler(CudaLibrary(library_path("cuda")), 1, 1, (1 << 20) + 1)
    assert wide.supports(SamplingParameters(0.0, 0, 1.0, 0.0, 0))
    assert not wide.supports(SamplingParameters(1.0, 20, 1.0, 0.0, 0))
