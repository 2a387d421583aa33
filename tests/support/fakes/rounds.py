"""Requests on the fake model, a round at a time, and their answers by definition."""

import time
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest

from support.fakes.blocks import FakeBlocks, drafter_config
from support.fakes.engine import END, TEMPLATE, VOCAB, engine_of
from support.fakes.model import FakeModel, chaotic, mostly_right
from support.fakes.step import FakeStep
from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.request import Request
from trigraph.runtime.sampling.sampling import Sampler
from trigraph.runtime.scheduler.admission import Admission
from trigraph.runtime.scheduler.new_request import new_request
from trigraph.runtime.scheduler.scheduler import Scheduler
from trigraph.runtime.text.tokenizer import Detokenizer, Tokenizer

LOGITS = lru_cache(maxsize=None)(chaotic(VOCAB))
CONTEXT = 64
LIMIT = 240
"""Seconds after which a test hangs."""


def fresh(draft: bool = True, *, block: int = 0, window: int = 0, **sizes: int) -> tuple[Engine, FakeModel]:
    """An engine whose head is often wrong; four sequences, 64 tokens of context, unless given.

    `block`: rows of a block drafter in the head's place, which sees `window` positions, or all.
    """
    config = drafter_config(block=block, window=window)
    blocks = FakeBlocks(LOGITS, config, lambda history: hash(history) % 3 == 0) if block else None
    engine, model = engine_of(LOGITS, draft=draft, template=TEMPLATE, blocks=blocks, guess=None, **sizes)
    if draft and not block:
        model.guess = mostly_right(LOGITS)
    return engine, model


def options(seed: int = 0, max_tokens: int = 12, **others: object) -> Options:
    sampling = Sampling(temperature=0.9, seed=seed)
    return Options(sampling, max_tokens=max_tokens, ignore_eos=True, **others)  # type: ignore[arg-type]


def tokens(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]


def cut_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of a completion that its token limit cuts: without a character that is not whole."""
    return "".join(map(Detokenizer(tokenizer).push, ids))


def alone(prompt: list[int], options: Options, context: int = CONTEXT) -> list[int]:
    """The completion by definition: one token after the other, each of the logits of all that precedes it."""
    history, sampler = [*prompt], Sampler(options.chosen_by, prompt)
    room = context - len(prompt)
    limit = room if options.max_tokens is None else min(options.max_tokens, room)
    while len(history) < len(prompt) + limit:
        row = LOGITS(tuple(history))
        token = sampler.pick(FakeStep(np.array([row.argmax()]), row[None]), 0, len(history))
        if token == END and not options.ignore_eos:
            break
        history.append(token)
    return history[len(prompt) :]


def scheduler(engine: Engine) -> Scheduler:
    return engine._driver.scheduler


def asked(handle: Handle) -> Request:
    """What rounds have of a request that is not done."""
    assert handle.request is not None
    return handle.request


def queued(engine: Engine, prompt: list[int], options: Options, **others: object) -> Handle:
    """A request that waits, while nobody runs rounds."""
    driver = engine._driver
    request = new_request(driver, engine.model, prompt, options, **others)  # type: ignore[arg-type]
    if request.request is not None:
        request._begun = True
        driver._waiting.enter(request.request, driver._steps.state.sequences - len(driver.scheduler.active))
    return request


def run_round(engine: Engine) -> None:
    engine._driver.turn()


def finish(engine: Engine, requests: list[Handle], limit: int = 1000) -> int:
    """Runs rounds until the requests are done; how many that took."""
    for number in range(limit):
        if all(request.done for request in requests):
            return number
        run_round(engine)
    raise AssertionError(f"not done after {limit} rounds: {[request.progress for request in requests]}")


def rest(engine: Engine) -> None:
    """Waits until nothing is left to do."""
    until = time.monotonic() + LIMIT
    while engine.load.running or engine.load.waiting:
        assert time.monotonic() < until
        time.sleep(0.001)
    engine._driver.call(lambda: None)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces of prompts that do not depend on the clock: eight tokens while others decode."""
    monkeypatch.setattr(
        Admission, "piece", lambda self, active: 8 if any(request.decodes for request in active) else 16
    )
    yield
