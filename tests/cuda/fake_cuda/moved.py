"""Requests that move between the CPU and the GPU in the midst of a text: state is the same bytes on both."""

import pytest

from support.devices.placed import budget_for
from support.models.packages import Packages
from support.requests.moved import asked, moved_between
from trigraph.runtime import load
from trigraph.runtime.execution.prefill_speed import PrefillSpeed

CAPACITY = 192
PROMPT = list(range(3, 53))
"""The first page ends between the first move and the second."""


@pytest.mark.parametrize(("share", "slow"), [(0.5, True), (1, False)])
def test_streams_that_move_are_those_that_stay(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, share: float, slow: bool
) -> None:
    """Every 10 tokens, with their state or from their tokens."""
    monkeypatch.setattr(PrefillSpeed, "seconds", lambda _, tokens: 1e9 if slow else 0.0)
    package = packages("tiny-moe", "Q4_K_M")
    on_cpu = load(package, device="cpu", context=CAPACITY, sequences=3)
    budget = budget_for(package, share, context=CAPACITY, sequences=3)
    on_gpu = load(package, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=3)
    for name, option in asked(36).items():
        whole = on_cpu.generate(PROMPT, option)
        text = whole.run()
        for engines in ((on_cpu, on_gpu), (on_gpu, on_cpu)):
            found = moved_between(engines, PROMPT, option, 10)
            assert (found.request.text, found.request.ids) == (text, whole.ids), name
            assert found.moves >= len(whole.ids) // 14 - 1 and found.states == (found.moves if slow else 0)
