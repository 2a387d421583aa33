"""Requests at random on real graphs: each gets the very tokens that it gets alone, whatever runs beside it.

Arrivals, lengths, seeds, constraints, penalties, priorities, cancels and preemptions are drawn at random; the cache is
cold, warm or too small, and there are pages for half of what is asked.
"""

from __future__ import annotations

import functools

import pytest

from support.fakes.engine import assert_settled
from support.fakes.rounds import finish, queued, run_round
from support.models.packages import Packages
from support.operators.run import LIBRARY
from support.requests.random_requests import MODELS, Asked, folder, requests_of
from trigraph.runtime import Engine, load
from trigraph.runtime.scheduler.room import Room

COUNT = 40
CONTEXT, SEQUENCES = 200, 4
# Threads, contexts that the KV pages hold, and slots for checkpoints beside the two of each sequence. Four requests may
# need four contexts.
WAYS = {"cold": (1, 6, 4), "warm": (2, 64, 200), "few slots": (2, 6, 0), "few pages": (1, 1, 4)}


@functools.cache
def expected(packages: Packages, model: tuple[str, ...]) -> tuple[list[Asked], list[list[int]]]:
    """The requests, and the tokens that each gets alone, from an empty cache."""
    engine = load(folder(packages, model), threads=1, context=CONTEXT, sequences=1, device=LIBRARY)
    asked = requests_of(engine.steps.vocab, COUNT, seed=len(model[0]))
    answers = []
    for one in asked:
        engine.cache.clear()
        request = engine.generate(one.prompt, one.options)
        request.run()
        answers.append(request.ids)
    return asked, answers


def serve(engine: Engine, asked: list[Asked], answers: list[list[int]]) -> int:
    """Runs the requests as they come, and compares; how often one was preempted."""
    requests, waiting, number = [], [*enumerate(asked)], 0
    cancels: dict[int, list[int]] = {}
    while waiting:
        while waiting and waiting[0][1].round <= number:
            i, one = waiting.pop(0)
            requests.append(queued(engine, [*one.prompt], one.options, priority=one.priority))
            if one.cancelled is not None:
                cancels.setdefault(number + one.cancelled, []).append(i)
        for i in cancels.pop(number, []):
            requests[i].cancel()
        run_round(engine)
        number += 1
    finish(engine, requests, 200 * len(requests))
    for one, request, answer in zip(asked, requests, answers, strict=True):
        assert request.error is None
        cancelled = request.stats.finish_reason == "cancelled"
        assert one.cancelled is not None or not cancelled
        assert request.ids == (answer[: len(request.ids)] if cancelled else answer)
    return sum(request.preemptions for request in requests)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_each_request_gets_what_it_gets_alone(
    model: tuple[str, ...], way: str, packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = expected(packages, model)
    threads, contexts, checkpoints = WAYS[way]
    package = folder(packages, model)
    state = load(package, threads=1, context=CONTEXT, sequences=1, device=LIBRARY).steps.state
    engine = load(
        package,
        threads=threads,
        context=CONTEXT,
        sequences=SEQUENCES,
        kv_memory=contexts * state.limits.pages * state.page_bytes,
        checkpoint_memory=(SEQUENCES + checkpoints) * state.slot_bytes,
        device=LIBRARY,
    )
    if way == "few pages":  # preempted far more often than need be
        monkeypatch.setattr(Room, "fits", lambda *_: True)
    for _ in range(2 if way == "warm" else 1):
        preemptions = serve(engine, asked, answers)
    if way == "few pages":
        assert preemptions
    if way == "warm":
        assert engine.cache.stats.tokens_found > engine.cache.stats.tokens_missed
    assert_settled(engine)
