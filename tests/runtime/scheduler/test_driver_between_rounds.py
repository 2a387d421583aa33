"""Who wants the state while others run rounds gets it between two of them."""

import threading
import time

from support.fake_engine import assert_settled
from support.rounds import alone, fresh, options, tokens

LIMIT = 60
"""Seconds after which a test hangs."""


def test_who_wants_the_state_gets_it_after_the_round() -> None:
    """A lock alone is no queue: who runs the rounds takes it again at once."""
    engine, model = fresh(context=2000)
    chat = engine.chat("You are terse.")
    busy = [engine.submit(tokens(9, n), options(n, 1500)) for n in range(2)]
    inside, overtaken = threading.Event(), set[int]()

    def watch(graph: str, pieces: object) -> None:
        if engine._driver._guests:
            overtaken.add(len(busy[0].rounds))
        inside.set()

    model.watch = watch
    for _ in range(20):
        inside.clear()
        assert inside.wait(LIMIT)
        overtaken.clear()
        with chat._runner.between():
            rounds = len(busy[0].rounds)
            time.sleep(0.002)
            assert len(busy[0].rounds) == rounds  # nobody runs one meanwhile
        assert len(overtaken) <= 1  # the round in progress, and none after it
    for request in busy:
        request.cancel()
        request.result(LIMIT)
    assert_settled(engine)


def test_a_listener_may_want_the_state_too() -> None:
    engine, _ = fresh()
    request = engine.submit(tokens(9), options())
    seen: list[int] = []

    def listen() -> None:
        with engine._driver.between():
            seen.append(len(request.ids))

    request.listen(listen)
    request.result(LIMIT)
    assert request.ids == alone(tokens(9), options())
    assert seen[-1] == len(request.ids)
