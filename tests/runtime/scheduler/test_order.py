"""Whose prompt is computed next. What others cost a request is counted in tokens of prompts, never in seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fakes.engine import assert_settled
from support.fakes.rounds import alone, fresh, options, queued, run_round, scheduler, steady, tokens
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.scheduler.order import count_delays, in_order

__all__ = ["steady"]
PIECE = 16
CONTEXT = 640


@dataclass(frozen=True)
class Asked:
    """A prompt that comes after so many tokens of others."""

    length: int
    after: int = 0
    priority: int = 0


SHORTS = [Asked(20, after) for after in range(0, 720, 12)]
MIXES: dict[str, tuple[list[Asked], dict[int, int]]] = {
    "a short one behind a long one": ([Asked(600), Asked(20, 100)], {0: 620, 1: 20}),
    "ever shorter ones": ([Asked(600), Asked(55, 90), Asked(5, 92)], {0: 660, 1: 60, 2: 5}),
    "equal ones": ([Asked(200), Asked(200), Asked(200)], {0: 200, 1: 400, 2: 600}),
    "too long to go first": ([Asked(600), Asked(300, 50)], {0: 600, 1: 850}),
    "more short ones than there is time for": ([Asked(600), *SHORTS], {0: 720}),
    "a long one among short ones": ([*SHORTS[:20], Asked(400), *SHORTS[20:]], {20: 400 + 480}),
    "priorities": ([Asked(400), Asked(300, 50, 1), Asked(10, 60), Asked(10, 60, 1)], {0: 720, 1: 310, 2: 310, 3: 10}),
}
"""Prompts, and how many tokens may be computed from when some of them come until they are done; then a piece more."""


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("name", MIXES)
def test_mixes(name: str) -> None:
    mix, bounds = MIXES[name]
    engine, model = fresh(draft=False, context=CONTEXT)
    requests: list[Handle] = []
    begun: list[int] = []
    took, clock = [0] * len(mix), 0
    waiting = deque(sorted(range(len(mix)), key=lambda number: mix[number].after))
    numbers: list[int] = []
    while waiting or not all(request.done for request in requests):
        while waiting and (mix[waiting[0]].after <= clock or all(request.done for request in requests)):
            numbers.append(number := waiting.popleft())
            prompt = tokens(mix[number].length, number)
            requests.append(queued(engine, prompt, options(number, 1), priority=mix[number].priority))
            begun.append(clock)
        run_round(engine)
        clock = sum(sum(sizes) for _, sizes in model.runs)
        for number, request, start in zip(numbers, requests, begun, strict=True):
            if request.done and not took[number]:
                took[number] = clock - start
    for number, bound in bounds.items():
        assert took[number] <= bound + PIECE, f"the one of {mix[number].length} tokens waited for others"
    for number, request in zip(numbers, requests, strict=True):
        assert request.ids == alone(tokens(mix[number].length, number), options(number, 1), CONTEXT)
    assert_settled(engine)


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("sequences", [2, 8])
def test_a_short_one_behind_two_hundred_long_ones(sequences: int) -> None:
    """They hold no slots before their turn comes."""
    engine, model = fresh(draft=False, context=CONTEXT, sequences=sequences)
    for number in range(200):
        queued(engine, tokens(500, number), options(number, 1))
    for _ in range(5):
        run_round(engine)
    assert len(scheduler(engine).active) == 1
    short = queued(engine, tokens(20, 1000), options(0, 1))
    model.runs.clear()
    while not short.done:
        run_round(engine)
    assert sum(sum(sizes) for _, sizes in model.runs) <= 20 + PIECE


@pytest.mark.usefixtures("steady")
def test_one_that_waits_for_a_common_beginning_holds_nobody_up() -> None:
    engine, _ = fresh(draft=False, context=CONTEXT)
    document = tokens(500)
    first, second = (queued(engine, [*document, *tokens(9, n)], options(n, 1)) for n in (1, 2))
    run_round(engine)
    other = queued(engine, tokens(20, 3), options(3, 1))
    for _ in range(2):
        run_round(engine)
    assert other.done and not first.done
    while not second.done:
        run_round(engine)
    assert first.done and second.reused == 500
    assert_settled(engine)


@dataclass(eq=False)
class Prompt:
    """What the order depends on."""

    rank: tuple[int, int]
    target_length: int
    missing: int
    found: int = 0
    delay: int = 0
    lost: int = 0
    ahead: int = 0
    """Tokens of earlier ones that were missing when it came."""
    since: int = 0
    """Tokens that were computed since it came."""


@given(
    coming=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 400)), min_size=1, max_size=40),
    piece=st.integers(1, 64),
)
@settings(max_examples=100, deadline=None)
def test_nobody_is_delayed_by_more_than_a_fifth(coming: list[tuple[int, int]], piece: int) -> None:
    """Whatever comes, and however much: the earlier ones are computed, and a fifth of its own tokens."""
    waiting: list[Any] = []
    arrivals = deque(coming)
    wait = 0
    number = 0
    while arrivals or waiting:
        while arrivals and (not waiting or wait >= arrivals[0][0]):
            _, length = arrivals.popleft()
            ahead = sum(prompt.missing for prompt in waiting)
            waiting.append(Prompt((0, number), length, length, ahead=ahead))
            wait, number = 0, number + 1
        pieces: dict[Any, int] = {}
        left = piece
        for prompt in chain.from_iterable(in_order(waiting)):
            pieces[prompt] = min(left, prompt.missing)
            left -= pieces[prompt]
            if not left:
                break
        count_delays(pieces, waiting)
        for prompt in waiting:
            prompt.missing -= pieces.get(prompt, 0)
            prompt.since += piece - left
        for prompt in [prompt for prompt in waiting if not prompt.missing]:
            waiting.remove(prompt)
            assert prompt.since <= prompt.ahead + 1.2 * prompt.target_length + 2 * piece
        wait += 1
