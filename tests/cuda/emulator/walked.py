"""Drafts that a device chooses among a block drafter's candidates: those of the host's walk, to the bit.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.emulator.drawn import FILTERS, on_device

from trigraph.custom_ops import library_path
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.cuda.sampler import CudaSampler
from trigraph.runtime.device.exchange import Exchange
from trigraph.runtime.device.sampler import Sample, SamplingParameters
from trigraph.runtime.execution.executor import SequencePlan, _walk
from trigraph.runtime.execution.results import BlockResult
from trigraph.runtime.sampling.sampling import Sampler, Sampling

GREEDY = SamplingParameters(0.0, 0, 1.0, 0.0)
BLOCK = 8


def walked(result: BlockResult, walks: list[tuple[int, int]], samples: list[Sample]) -> list[int]:
    library = CudaLibrary(library_path("cuda"))
    sampler = CudaSampler(library, len(samples), 1, 1000)
    sampler.begin(samples)
    outputs = {"candidates": on_device(library, result.candidates), "edges": on_device(library, result.edges)}
    sampler.walk(Exchange({}, outputs), walks)
    found = sampler.read()
    library.wait()
    return [int(token) for token in found]


def expected(
    result: BlockResult, walks: list[tuple[int, int]], ways: list[SamplingParameters], lengths: list[int]
) -> list[int]:
    """By the host's walk."""
    found = []
    for (row, count), way, length in zip(walks, ways, lengths, strict=True):
        sampling = Sampling(**way._asdict())
        guess = Sampler(sampling, []).guess_among
        sequence: Any = SimpleNamespace(length=length)
        part = SequencePlan(sequence, [1], count, lambda *_: 0, guess_among=guess)
        found += _walk(part, result, row)
    return found


def block(seed: int, count: int, predecessors: int, sequences: int) -> BlockResult:
    """Random candidates, the likeliest by itself first, and edges, with ties, infinities and NaN in some rows."""
    rng = np.random.default_rng(seed)
    rows = sequences * BLOCK
    ids = np.stack([rng.permutation(1000)[:count] for _ in range(rows)]).astype(np.int64)
    edges = (3 * rng.standard_normal((rows, predecessors, count))).astype(np.float32)
    edges[1::3] = np.round(edges[1::3])
    edges[2::5, :, 1::2] = -np.inf
    edges[4] = -np.inf
    edges[5, :, count // 2] = np.nan
    edges[6] = np.nan
    return BlockResult(ids, edges)


def check(result: BlockResult, ways: list[SamplingParameters], counts: list[int]) -> None:
    walks = [(1 + i * BLOCK, count) for i, count in enumerate(counts)]
    lengths = [17 * i for i in range(len(counts))]
    samples = [
        Sample(way, length + 1 + i, only_drawn=False)
        for way, length, count in zip(ways, lengths, counts, strict=True)
        for i in range(count)
    ]
    assert walked(result, walks, samples) == expected(result, walks, ways, lengths)


@pytest.mark.parametrize(("count", "predecessors"), [(1, 1), (8, 8), (16, 16), (32, 1), (40, 40), (200, 200)])
def test_walks_are_those_of_the_host(count: int, predecessors: int) -> None:
    """Of sequences that draw in every way, together, and of one alone."""
    ways: list[SamplingParameters] = [GREEDY, *FILTERS]
    ways = [way._replace(seed=2**64 - 1 - i) for i, way in enumerate(ways)]
    for seed in range(3):
        result = block(seed, count, predecessors, len(ways))
        check(result, ways, [7, 6, 5, 7, 1, 7, 7])
        check(result, ways[:1], [7])
        check(result, ways[1:2], [7])


def test_more_sequences_than_a_launch_takes() -> None:
    ways = [GREEDY, FILTERS[0]] * 50
    check(block(0, 8, 8, 100), ways, [1 + i % 7 for i in range(100)])
