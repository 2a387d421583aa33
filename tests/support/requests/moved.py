"""Requests that move from one engine to another, again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue

from trigraph.runtime import Engine, JsonSchema, Options, Request, Sampling
from trigraph.runtime.requests.recording import RecordedRow
from trigraph.runtime.scheduler.detached import Detached

PROMPTS = ("It was said in the beginning that", "{", "One, two, three")
_NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 20, "maxItems": 40}


def asked(tokens: int) -> dict[str, Options]:
    """Completions of every kind, of at most so many tokens."""
    plain = Options(max_tokens=tokens, ignore_eos=True, draft_tokens=0)
    return {
        "greedy": replace(plain, sampling=Sampling(temperature=0)),
        "sampled": replace(plain, sampling=Sampling(seed=5, repeat_penalty=1.1)),
        "drafted": replace(plain, sampling=Sampling(temperature=0.8, seed=6), draft_tokens=3),
        "constrained": Options(Sampling(seed=7), max_tokens=tokens, constraint=JsonSchema(json.dumps(_NUMBERS))),
    }


@dataclass
class Moved:
    """A request at the end of its way."""

    request: Request
    moves: int = 0
    states: int = 0
    """Moves with state."""
    pauses: list[float] = field(default_factory=list)
    """Seconds from the last token here to the next one there."""
    rows: list[RecordedRow] = field(default_factory=list)
    """Of all engines, where a receipt is asked for."""


def moved_between(engines: tuple[Engine, Engine], prompt: str | Sequence[int], options: Options, every: int) -> Moved:
    """A request that goes to the other engine every so many tokens, until it is done."""
    found = Moved(engines[0].generate(prompt, options))
    left: float | None = None
    begun = 0  # tokens with which an engine got it
    while True:
        request, engine = found.request, engines[found.moves % 2]
        box: SimpleQueue[Detached | None] = SimpleQueue()
        came = SimpleQueue[float]()
        request.listen(partial(_leave, engine, request, begun, every, box, came))
        request.begin()
        if request.done:  # before it was listened to
            came.put(time.perf_counter())
            box.put(None)
        if left is not None:
            found.pauses.append(came.get() - left)
        detached = box.get()
        found.rows += request.rows
        if detached is None:
            return found
        left, begun = time.perf_counter(), len(detached.completed)
        found.moves += 1
        found.states += detached.state is not None
        found.request = engines[found.moves % 2].attach(detached)


def _leave(
    engine: Engine,
    request: Request,
    begun: int,
    every: int,
    box: SimpleQueue[Detached | None],
    came: SimpleQueue[float],
) -> None:
    """What a request's listener does, between two rounds."""
    if len(request.ids) > begun or request.done:
        came.put(time.perf_counter())
    if request.done:
        box.put(None)
    elif len(request.ids) >= begun + every and box.empty():
        box.put(engine.detach(request))
