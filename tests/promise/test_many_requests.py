"""Requests at random on real graphs: each gets the very tokens that it gets alone, whatever runs beside it.

Arrivals, lengths, seeds, constraints, penalties, priorities, cancels and preemptions are drawn at random; the cache is
cold, warm or too small, and there are pages for half of what is asked. TRIGRAPH_REQUESTS sets how many requests.
"""

from __future__ import annotations

import functools
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.constraints import REGEXES, SCHEMAS
from support.fake_engine import assert_settled
from support.operators import LIBRARY
from support.packages import Packages
from support.rounds import finish, queued, run_round
from trigraph.runtime import Engine, JsonSchema, Options, Regex, Sampling, load
from trigraph.runtime.sampling.constraint import Constraint

COUNT = int(os.environ.get("TRIGRAPH_REQUESTS", "40"))
CONTEXT, SEQUENCES = 200, 4
MODELS = [
    ("trained", "Q8_0", "int8", "f16"),
    ("tiny-dense", "mixed", "float32", "f32"),
    ("tiny-moe", "Q4_K_M", "int8", "f16"),
    ("tiny-next", "mixed", "int8", "f32"),
]
# Threads, contexts that the KV pages hold, and slots for checkpoints beside the two of each sequence. Four requests may
# need four contexts.
WAYS = {"cold": (1, 6, 4), "warm": (2, 64, 200), "few slots": (2, 6, 0), "few pages": (1, 1, 4)}


@dataclass(frozen=True)
class Asked:
    """A request, and when it comes and goes."""

    prompt: tuple[int, ...]
    options: Options
    priority: int
    round: int
    cancelled: int | None
    """Rounds after it came."""


def constraint(rng: random.Random) -> Constraint | None:
    kind = rng.random()
    if kind < 0.15:
        return JsonSchema(json.dumps(rng.choice(SCHEMAS)))
    return Regex(rng.choice(REGEXES)) if kind < 0.3 else None


def requests_of(vocab: int, count: int, seed: int) -> list[Asked]:
    rng, asked, now = random.Random(seed), [], 0
    documents = [[rng.randrange(vocab) for _ in range(90)] for _ in range(3)]
    for number in range(count):
        common = rng.choice([0, 20, 60, 90])
        rest = [rng.randrange(vocab) for _ in range(rng.choice([1, 2, 7, 30, 60]))]
        sampling = Sampling(
            temperature=rng.choice([0.0, 0.7, 1.3]),
            top_k=rng.choice([0, 20]),
            repeat_penalty=rng.choice([1.0, 1.2]),
            presence_penalty=rng.choice([0.0, 0.5]),
            seed=number,
        )
        options = Options(
            sampling,
            max_tokens=rng.choice([0, 1, 5, 16, 30, 90]),
            ignore_eos=rng.random() < 0.5,
            constraint=constraint(rng),
            speculate=rng.random() < 0.8,
            draft_tokens=rng.choice([None, None, 1, 3, 7]),
        )
        cancelled = rng.randrange(20) if rng.random() < 0.15 else None
        prompt = (*rng.choice(documents)[:common], *rest)
        asked.append(Asked(prompt, options, rng.choice([0, 0, 0, 1, -1]), now, cancelled))
        now += rng.choice([0, 0, 1, 3, 10])
    return asked


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


def folder(packages: Packages, model: tuple[str, ...]) -> Path:
    geometry, quant, activations, kv_type = model
    return packages(geometry, quant, activations=activations, kv_type=kv_type)


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
def test_each_request_gets_what_it_gets_alone(model: tuple[str, ...], way: str, packages: Packages) -> None:
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
    for _ in range(2 if way == "warm" else 1):
        preemptions = serve(engine, asked, answers)
    if way == "few pages":
        assert preemptions
    if way == "warm":
        assert engine.cache.stats.tokens_found > engine.cache.stats.tokens_missed
    assert_settled(engine)
