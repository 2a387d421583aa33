"""What programs keep of requests keeps no engine, however they ended: its memory is free at once.

The collector counts objects and no bytes: it may come long after.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.fakes.rounds import asked, fresh, options, tokens
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine
from trigraph.runtime.requests.handle import Handle

LIMIT = 60
"""Seconds after which a test hangs."""


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def failing(engine: Engine, after: int = 2) -> Handle:
    """A request whose sampler fails in a round."""
    handle = engine.generate(tokens(9), options())
    pick = asked(handle).sampler.pick

    def fail(*arguments: Any) -> int:
        if len(handle.ids) == after:
            raise TrigraphError("it fails") from ValueError("for a reason")
        return pick(*arguments)

    asked(handle).sampler.pick = fail  # type: ignore[method-assign,assignment]
    return handle


def whole(engine: Engine) -> Handle:
    handle = engine.generate(tokens(9), options())
    handle.run()
    return handle


def left(engine: Engine) -> Handle:
    handle = engine.generate(tokens(9), options(max_tokens=40))
    next(pieces := iter(handle))
    del pieces
    handle._wait(lambda: handle.done)
    return handle


def closed(engine: Engine) -> list[Handle]:
    handles = [engine.submit(tokens(9, n), options(n, 40)) for n in range(9)]
    engine.close()
    return handles


def failed(engine: Engine) -> Handle:
    handle = failing(engine)
    for wait in (handle.result, handle.run):
        with pytest.raises(TrigraphError, match="it fails"):
            wait()
    return handle


def failed_at_once(engine: Engine) -> Handle:
    handle = failing(engine, after=0)
    with pytest.raises(TrigraphError, match="it fails"):
        handle.result()
    return handle


def failed_step(engine: Engine) -> Handle:
    def fail(*arguments: object) -> None:
        raise TrigraphError("it fails")

    engine.steps.prefill = fail  # type: ignore[method-assign,assignment]
    handle = engine.generate(tokens(9), options())
    with pytest.raises(TrigraphError, match="it fails"):
        handle.result()
    return handle


def awaited(engine: Engine) -> Handle:
    async def wait() -> Handle:
        handle = failing(engine)
        for _ in range(2):
            with pytest.raises(TrigraphError, match="it fails"):
                await handle
        async for _ in engine.generate(tokens(9), options(max_tokens=40)):
            break
        return handle

    return asyncio.run(wait())


def refused(engine: Engine) -> Handle:
    handle = whole(engine)
    with pytest.raises(TrigraphError, match="the completion is done"):
        engine.detach(handle)
    return handle


def moved(engine: Engine) -> list[Handle]:
    begun = engine.submit(tokens(9), options(max_tokens=40))
    return [begun, engine.attach(engine.detach(begun))]


@pytest.mark.parametrize("keep", [whole, left, closed, failed, failed_at_once, failed_step, awaited, refused, moved])
def test_what_is_kept_of_a_request_keeps_no_engine(keep: Callable[[Engine], Handle | list[Handle]]) -> None:
    engine, model = fresh()
    kept = keep(engine)
    for handle in kept if isinstance(kept, list) else [kept]:
        handle._wait(lambda handle=handle: handle.done)  # type: ignore[misc]
    parts = engine._driver, engine.steps, engine.cache
    there, thread = [weakref.ref(part) for part in parts], engine._driver._thread
    del engine, model, parts
    assert thread is not None
    thread.join(LIMIT)  # which holds the engine until the round is over that has woken this one
    assert [type(part()).__name__ for part in there if part() is not None] == []


def test_a_listener_that_holds_its_request_does_not_keep_it() -> None:
    engine, _ = fresh()
    request = engine.generate(tokens(9), options())
    request.listen(request.__repr__)
    request.run()
    engine._driver.call(lambda: None)  # by then the listeners have been told
    dropped = weakref.ref(request)
    del request
    assert dropped() is None


def test_each_caller_gets_an_error_of_his_own() -> None:
    """With what he holds in its traceback, and nothing of the others."""
    engine, _ = fresh()
    handle, errors = failing(engine), []
    for _ in range(2):
        with pytest.raises(TrigraphError, match="it fails") as raised:
            handle.result()
        errors.append(raised.value)
    assert errors[0] is not errors[1] and str(errors[0]) == str(errors[1]) == str(handle.error)
    assert handle.error is not None and handle.error.__traceback__ is None


def test_a_request_that_another_thread_cancels_as_it_begins() -> None:
    engine, _ = fresh()
    handle = engine.generate(tokens(9), options())
    handle.cancel()
    engine._driver.enter(handle)
    assert not engine.load.waiting and engine._driver._thread is None
