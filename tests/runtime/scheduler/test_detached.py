"""Requests that move from one engine to another in the midst of a text."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace

import pytest

from support.fakes.rounds import finish, fresh, options, queued, run_round, tokens
from support.requests.moved import PROMPTS, asked, moved_between
from trigraph.models.errors import TrigraphError
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, load
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.scheduler.detached import Detached


@pytest.fixture(scope="module")
def pair() -> tuple[Engine, Engine]:
    return load(TINY_GGUF, threads=1, context=256), load(TINY_GGUF, threads=1, context=320, sequences=2)


@pytest.fixture(params=["with its state", "from its tokens"])
def state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether computing again takes long."""
    slow: bool = request.param == "with its state"
    monkeypatch.setattr(PrefillSpeed, "seconds", lambda _, tokens: 1e9 if slow else 0.0)
    return slow


@pytest.mark.slow
def test_streams_that_move_are_those_that_stay(pair: tuple[Engine, Engine], state: bool) -> None:
    """Every 50 tokens, to an engine of another size."""
    for name, option in asked(120).items():
        for prompt in PROMPTS:
            whole = pair[0].generate(prompt, option)
            text = whole.run()
            found = moved_between(pair, prompt, option, 50)
            assert (found.request.text, found.request.ids) == (text, whole.ids), name
            assert found.moves >= len(whole.ids) // 50 - 1 and found.states == (found.moves if state else 0)
            reused = found.request.stats.reused_tokens
            assert not state or reused == len(found.request.prompt), "the prompt was computed again"


def test_a_prompt_moves_before_its_end(pair: tuple[Engine, Engine], state: bool) -> None:
    engine, model = fresh(context=200)
    whole = engine.generate(tokens(60), options())
    whole.run()
    engine.cache.clear()
    request = queued(engine, tokens(60), options(), priority=2, timeout=1e6)
    run_round(engine)
    assert 0 < request.progress[0] < 60
    detached: Detached = pickle.loads(pickle.dumps(engine.detach(request)))
    assert request.done and request.stats.finish_reason == "cancelled" and not request.ids
    assert (detached.state is not None) == state
    assert detached.priority == 2 and 0 < (detached.seconds_left or 0) <= 1e6
    model.runs.clear()
    attached = engine.attach(detached)
    assert attached.result() == whole.text


def test_one_that_waits_moves_without_state() -> None:
    engine, _ = fresh()
    request = queued(engine, tokens(9), options())
    detached = engine.detach(request)
    assert detached.state is None and not detached.completed and request.done
    assert engine.attach(detached).result() == engine.generate(tokens(9), options()).run()


def test_a_look_leaves_the_request_as_it_is(state: bool) -> None:
    engine, _ = fresh()
    request = queued(engine, tokens(9), options())
    while len(request.ids) < 5:
        run_round(engine)
    seen = engine.peek(request)
    finish(engine, [request])
    assert request.ids[: len(seen.completed)] == [*seen.completed] and len(seen.completed) >= 5
    assert engine.attach(seen).result() == request.text


def test_what_cannot_move(pair: tuple[Engine, Engine], state: bool) -> None:
    engine = pair[0]
    done = engine.generate("Once", options(max_tokens=3))
    done.run()
    with pytest.raises(TrigraphError, match="the completion is done"):
        engine.detach(done)
    with pytest.raises(TrigraphError, match="another engine's"):
        pair[1].detach(engine.generate("Once", options(max_tokens=3)))
    detached = replace(engine.peek(engine.generate("Once", options())), state=b"{}" * 40)
    with pytest.raises(TrigraphError, match="not a session file"):
        pair[1].attach(detached)


def test_the_state_of_another_model_is_refused(state: bool) -> None:
    (engine, _), (other, _) = fresh(), fresh()
    request = queued(engine, tokens(9), options())
    run_round(engine)
    detached = engine.detach(request)
    other = Engine(replace(other.model, identity=ModelIdentity("another", "b" * 64)))
    if state:
        with pytest.raises(TrigraphError, match=re.escape("was saved with the model")):
            other.attach(detached)
