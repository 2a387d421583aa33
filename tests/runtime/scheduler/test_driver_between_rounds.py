"""Whoever wants the state while rounds go on gets it between two of them."""

import threading
import time

import pytest

from support.fakes.engine import assert_settled
from support.fakes.rounds import alone, fresh, options, tokens
from trigraph.models.errors import TrigraphError

LIMIT = 60
"""Seconds after which a test hangs."""


def test_a_function_runs_after_the_round_in_progress() -> None:
    engine, model = fresh(context=2000)
    busy = [engine.submit(tokens(9, n), options(n, 1500)) for n in range(2)]
    inside = threading.Event()
    model.watch = lambda graph, pieces: inside.set()

    def look() -> int:
        rounds = len(busy[0].rounds)
        time.sleep(0.002)
        assert len(busy[0].rounds) == rounds  # nobody runs one meanwhile
        return rounds

    for _ in range(20):
        inside.clear()
        assert inside.wait(LIMIT)
        asked = len(busy[0].rounds)
        assert engine._driver.call(look) <= asked + 2  # the round in progress, and one that begins just now
    for request in busy:
        request.cancel()
        request.result(LIMIT)
    assert_settled(engine)


def test_what_a_function_raises_is_its_callers() -> None:
    engine, _ = fresh()
    request = engine.submit(tokens(9), options())

    def fail() -> None:
        raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        engine._driver.call(fail)
    request.result(LIMIT)
    assert request.ids == alone(tokens(9), options())


def test_a_listener_may_want_the_state_too() -> None:
    engine, _ = fresh()
    request = engine.submit(tokens(9), options())
    seen: list[int] = []
    request.listen(lambda: engine._driver.call(lambda: seen.append(len(request.ids))))
    request.result(LIMIT)
    engine._driver.call(lambda: None)
    assert request.ids == alone(tokens(9), options())
    assert seen[-1] == len(request.ids)


def test_a_finalizer_in_a_round_gets_no_state() -> None:
    engine, model = fresh()
    errors: list[TrigraphError] = []

    def watch(graph: str, pieces: object) -> None:
        with pytest.raises(TrigraphError, match="interrupted a round") as error:
            engine._driver.call(lambda: None)
        errors.append(error.value)

    model.watch = watch
    request = engine.submit(tokens(9), options())
    request.result(LIMIT)
    assert errors
    assert request.ids == alone(tokens(9), options())
