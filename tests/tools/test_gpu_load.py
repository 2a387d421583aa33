"""The loads of tools/gpu.py, on the CPU: that they run, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpu_load
from trigraph.runtime import load
from trigraph.runtime.bench.load import Load
from trigraph.runtime.bench.random_tokens import RandomTokens


def test_a_server_under_clients(tiny_gguf: Path) -> None:
    work = Load.draw(RandomTokens(1000), requests=3, prompt=16, tokens=9, concurrency=2)
    with gpu_load.serving(tiny_gguf, "cpu", 64, 2) as port:
        found = gpu_load.served(port, work)
    assert found.first_ms > 0 and found.ms_a_token > 0 and found.tokens_a_second > 0


def test_a_mixed_load(tiny_gguf: Path) -> None:
    """It ends by itself, and every round is looked at."""
    engine = load(tiny_gguf, context=128, sequences=4)
    samples = iter(range(100))
    assert gpu_load.mixed(engine, 0, lambda: next(samples), seed=1) == [0]


@pytest.mark.parametrize(
    ("used", "expected"), [([5], 0), ([1, 5, 5, 5, 5, 5], 0), ([1, 2, 5, 5, 5, 7], 2), ([9, 9, 9, 8], -1)]
)
def test_growth(used: list[int], expected: int) -> None:
    assert gpu_load.growth(used) == expected
