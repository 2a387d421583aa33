"""The load of tools/gpu_soak.py, on the CPU: that it runs, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpu_soak
from trigraph.runtime import load


def test_a_mixed_load(tiny_gguf: Path) -> None:
    """It ends by itself, and every round is looked at."""
    engine = load(tiny_gguf, context=128, sequences=4)
    samples = iter(range(100))
    assert gpu_soak.mixed(engine, 0, lambda: next(samples), seed=1) == [0]


@pytest.mark.parametrize(
    ("used", "expected"), [([5], 0), ([1, 5, 5, 5, 5, 5], 0), ([1, 2, 5, 5, 5, 7], 2), ([9, 9, 9, 8], -1)]
)
def test_growth(used: list[int], expected: int) -> None:
    assert gpu_soak.growth(used) == expected
