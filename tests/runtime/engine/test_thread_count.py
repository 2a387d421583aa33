"""How many threads run a step."""

import os

import pytest

from support.models.packages import Packages
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Options, Sampling, load
from trigraph.runtime.execution.threads import choose_threads, default_threads


def test_threads_are_capped_at_the_processors() -> None:
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert choose_threads(None) == choose_threads(None, 10**9) == (default_threads(), None)
    assert choose_threads(None, 7_000_000) == (1, None)
    assert choose_threads(most) == (most, None)
    used, note = choose_threads(2000)
    assert used == most
    assert note == f"2000 threads were asked for; {most} are used, one for each processor that is available"
    for wrong in (0, -1, 1.5, "2"):
        with pytest.raises(TrigraphError, match=f"threads is {wrong!r}; it must be"):
            choose_threads(wrong)  # type: ignore[arg-type]


def test_an_engine_says_that_it_uses_fewer_threads(packages: Packages) -> None:
    engine = load(packages("trained", "Q8_0"), threads=2000, context=64)
    engine.generate("And", Options(Sampling(temperature=0), max_tokens=8)).run()
    assert any("2000 threads were asked for" in notice for notice in engine.model.notices)
    assert not load(packages("trained", "Q8_0"), threads=1, context=64).model.notices
