"""Listeners of requests: none can hurt a request that the engine's thread computes."""

from __future__ import annotations

import gc
import logging
import sys
import weakref

import pytest

from support.fakes.engine import assert_settled
from support.fakes.rounds import LIMIT, alone, fresh, options, rest, tokens
from trigraph.models.errors import TrigraphError
from trigraph.runtime.requests.handle import Handle


def test_a_listener_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """It is not called again, and no request fails."""
    engine, _ = fresh()
    calls = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("a careless listener")

    requests = [engine.generate(tokens(9, n), options(n)) for n in range(3)]
    requests[1].listen(fail)
    with caplog.at_level(logging.ERROR, "trigraph"):
        for request in requests:
            request.begin()
        for n, request in enumerate(requests):
            request.result(LIMIT)
            assert request.ids == alone(tokens(9, n), options(n))
    assert len(calls) == 1
    assert "a careless listener" in caplog.text


def test_a_listener_that_holds_its_request_does_not_keep_it() -> None:
    engine, _ = fresh()
    request = engine.generate(tokens(9), options())
    request.listen(request.__repr__)
    request.run()
    rest(engine)
    dropped = weakref.ref(request)
    gc.disable()
    try:
        del request
        assert dropped() is None
    finally:
        gc.enable()


def test_a_listener_that_exits() -> None:
    engine, _ = fresh()
    request = engine.submit(tokens(9), options())
    request.listen(lambda: sys.exit(3))
    request.result(LIMIT)
    assert engine.generate(tokens(9, 1), options(1)).run()


def test_a_listener_that_submits_another_request() -> None:
    engine, _ = fresh()
    others: list[Handle] = []

    def submit() -> None:
        if not others:
            others.append(engine.submit(tokens(9, 1), options(1)))

    request = engine.submit(tokens(9), options())
    request.listen(submit)
    request.result(LIMIT)
    engine._driver.call(lambda: None)
    others[0].result(LIMIT)
    assert others[0].ids == alone(tokens(9, 1), options(1))


@pytest.mark.parametrize("how", ["run", "result"])
def test_a_listener_that_waits_for_another_request(how: str) -> None:
    """An error at once, as nobody else would bring that request on."""
    engine, _ = fresh()
    errors: list[str] = []

    def wait() -> None:
        with pytest.raises(TrigraphError, match="cannot wait for a completion") as error:
            getattr(engine.generate(tokens(9, 1), options(1)), how)()
        errors.append(str(error.value))

    request = engine.generate(tokens(9), options())
    request.listen(wait)
    request.begin()
    request.result(LIMIT)
    assert request.ids == alone(tokens(9), options())
    assert errors
    rest(engine)
    assert_settled(engine)
