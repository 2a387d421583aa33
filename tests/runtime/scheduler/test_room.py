"""Requests that memory holds one after the other, and not together: what giving way costs, in computed tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from support.fakes.engine import END, GREEDY, VOCAB, assert_settled, engine_of
from support.fakes.model import PAGE, History
from support.fakes.rounds import queued, run_round, steady
from trigraph.runtime import Options
from trigraph.runtime.requests.handle import Handle

__all__ = ["steady"]
pytestmark = pytest.mark.usefixtures("steady")


@dataclass(frozen=True)
class Asked:
    """Tokens of a prompt, and those of its completion."""

    prompt: int
    completion: int
    priority: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


def shapes(count: int) -> dict[str, list[Asked]]:
    """So many requests each, all at once. Long prompts alone are no trial: they begin where there is room for them."""
    size = max(96, 400 // count)
    parts = [size * (number + 1) // count for number in range(count)]
    return {
        "completions": [Asked(size // 10, size - size // 10)] * count,
        "both": [Asked(size // 2, size // 2)] * count,
        "growing": [Asked(part // 2, part // 2) for part in parts],
        "shrinking": [Asked(part // 2, part // 2) for part in reversed(parts)],
    }


def play(asked: list[Asked], part: float, *, limited: bool, apart: int = 0) -> float:
    """Computed tokens over necessary ones, where memory holds this part of what all need together.

    `limited`: whether the requests say how long they become. `apart`: rounds from one to the next.
    """

    def logits(history: History) -> np.ndarray:
        row = np.zeros(VOCAB, np.float32)
        over = not limited and len(history) >= asked[history[0]].total
        row[END if over else (7 * len(history) + history[0]) % 200] = 1
        return row

    most, count = max(one.total for one in asked), len(asked)
    context = most + PAGE if limited else 4 * most
    pages = sum(-(-one.total // PAGE) for one in asked)
    pages = max(int(part * pages), -(-most // PAGE) + 3)
    engine, model = engine_of(logits, draft=False, context=context, sequences=count, pages=pages, slots=count + 24)
    drawn = random.Random(0)
    requests: list[Handle] = []
    rounds = 0
    while len(requests) < count or not all(request.done for request in requests):
        while len(requests) < count and rounds >= apart * len(requests):
            number, one = len(requests), asked[len(requests)]
            prompt = [number, *(drawn.randrange(200) for _ in range(one.prompt - 1))]
            limit = one.completion if limited else None
            options = Options(GREEDY, max_tokens=limit, ignore_eos=limited)
            requests.append(queued(engine, prompt, options, priority=one.priority))
        run_round(engine)
        rounds += 1
        assert rounds < 50 * sum(one.total for one in asked), "somebody starves"
    for number, (one, request) in enumerate(zip(asked, requests, strict=True)):
        assert request.error is None
        assert request.ids == [(7 * length + number) % 200 for length in range(one.prompt, one.total)]
    assert_settled(engine)
    prompts = sum(sum(sizes) for graph, sizes in model.runs if graph == "prefill")
    completions = sum(one.completion for one in asked)
    return (prompts + completions) / (sum(one.prompt for one in asked) + completions)


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("part", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_little_is_computed_again(count: int, part: float, limited: bool) -> None:
    costs = {name: play(asked, part, limited=limited) for name, asked in shapes(count).items()}
    assert max(costs.values()) <= 1.3, costs


@pytest.mark.parametrize("limited", [True, False])
def test_a_readmitted_request_stays(limited: bool) -> None:
    """One of 12,000 tokens and one of 30,000 decode where there is room for 44,000, in hundreds."""
    asked = [Asked(120, 80), Asked(300, 80)]
    assert play(asked, 440 / 580, limited=limited) <= 1.3


def test_those_that_come_one_after_the_other() -> None:
    costs = {name: play(asked, 0.6, limited=False, apart=12) for name, asked in shapes(4).items()}
    assert max(costs.values()) <= 1.3, costs
