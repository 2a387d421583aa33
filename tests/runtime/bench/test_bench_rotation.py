"""Engines that are timed beside each other take turns at being first."""

from collections.abc import Mapping, Sequence

from trigraph.runtime.bench import BenchOptions
from trigraph.runtime.bench.machine import Bandwidth
from trigraph.runtime.bench.random_tokens import RandomTokens
from trigraph.runtime.bench.timer import Timer


class Recorder:
    """See Contender. Writes down whose step it was."""

    drafters: Mapping[str, int] = {}

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self._calls = calls

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass

    def prefill(self, tokens: Sequence[int]) -> float:
        self._calls.append(self.name)
        return 1.5

    def verify(self, tokens: Sequence[int]) -> float:
        self._calls.append(self.name)
        return 2.5

    def draft(self, token: int) -> float:
        raise NotImplementedError


def test_engines_are_first_in_turn() -> None:
    calls: list[str] = []
    engines = [Recorder(name, calls) for name in "abc"]
    timer = Timer(BenchOptions(prompt=4, repetitions=2, verify_tokens=(1,)), Bandwidth(lambda: 1e9), RandomTokens(50))
    for taken, steps in ((timer.prefills, "abcbcacab"), (timer.steps, "aabbccbbccaaccaabb")):  # with a step to wake
        timings = list(taken(engines))
        assert "".join(calls) == steps
        assert [timing.case.engine for timing in timings] == ["a", "b", "c"]
        calls.clear()
    assert {sample.seconds for timing in timings for sample in timing.samples} == {2.5}
