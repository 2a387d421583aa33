"""Requests of many threads and event loops: nothing waits for ever, and every answer is the one of a request alone."""

import asyncio
import faulthandler
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from support.fakes.engine import assert_settled
from support.fakes.rounds import alone, cut_text, fresh, options, tokens
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, QueueFullError
from trigraph.runtime.requests.handle import Handle

LIMIT = 240
"""Seconds after which a test hangs."""
COUNT = 12


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def expected(engine: Engine, n: int) -> str:
    return cut_text(engine.tokenizer, alone(tokens(9, n), options(n)))


def idle(engine: Engine) -> None:
    """Waits until nothing is left to do."""
    until = time.monotonic() + 60
    while engine._driver.scheduler.active or engine._driver._waiting or engine._driver._marks.qsize():
        assert time.monotonic() < until, "the engine does not come to rest"
        time.sleep(0.001)
    engine._driver.call(lambda: None)  # after the round in progress


def test_submit_from_many_threads() -> None:
    engine, _ = fresh()

    def one(n: int) -> str:
        request = engine.submit(tokens(9, n), options(n), priority=n % 3)
        return request.result() if n % 2 else "".join(request)

    with ThreadPoolExecutor(COUNT) as pool:
        assert list(pool.map(one, range(COUNT))) == [expected(engine, n) for n in range(COUNT)]
    idle(engine)
    assert_settled(engine)


def test_submit_and_generate_mixed() -> None:
    engine, _ = fresh()

    def one(n: int) -> str:
        return (engine.submit if n % 2 else engine.generate)(tokens(9, n), options(n)).run()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(COUNT))) == [expected(engine, n) for n in range(COUNT)]
    idle(engine)
    assert_settled(engine)


def test_two_engines() -> None:
    engines = [fresh()[0], fresh()[0]]
    requests = [engines[n % 2].submit(tokens(9, n), options(n)) for n in range(COUNT)]
    assert [request.result() for request in requests] == [expected(engines[0], n) for n in range(COUNT)]
    for engine in engines:
        idle(engine)
        assert_settled(engine)


def test_one_thread_runs_all_rounds() -> None:
    engine, model = fresh()
    threads = set[int]()
    model.watch = lambda graph, pieces: threads.add(threading.get_ident())
    with ThreadPoolExecutor(3) as pool:
        requests = [(engine.submit if n % 2 else engine.generate)(tokens(9, n), options(n)) for n in range(COUNT)]
        assert [*pool.map(Handle.run, requests)] == [expected(engine, n) for n in range(COUNT)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_results_that_are_not_there_in_time() -> None:
    engine, model = fresh()
    going = threading.Event()
    model.watch = lambda graph, pieces: going.wait()
    request = engine.submit(tokens(9), options())
    for seconds in (0, 0.05):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"not done after {seconds} seconds"):
            request.result(seconds)
        assert time.monotonic() - began < 60
    going.set()
    assert request.result(LIMIT) == expected(engine, 0)
    assert request.result(0) == expected(engine, 0)


def test_results_that_are_there_just_in_time() -> None:
    """Nobody waits for the deadline when the last round ends in the moment in which the waiting begins."""
    engine, _ = fresh()
    for _ in range(200):
        request = engine.submit(tokens(9), options(0, 1))
        began = time.monotonic()
        assert request.result(20)
        assert time.monotonic() - began < 15


def test_a_cancel_during_a_step() -> None:
    engine, model = fresh()
    inside, going = threading.Event(), threading.Event()

    def watch(graph: str, pieces: list[list[int]]) -> None:
        if graph == "verify":
            inside.set()
            going.wait()

    model.watch = watch
    request, other = (engine.submit(tokens(9, n), options(n)) for n in (0, 1))
    inside.wait()
    request.cancel()
    assert not request.done
    going.set()
    request.result()
    assert request.stats.finish_reason == "cancelled"
    assert other.result() == expected(engine, 1)
    idle(engine)
    assert_settled(engine)


def test_iterators_that_are_abandoned() -> None:
    engine, _ = fresh(sequences=2)
    for n in range(COUNT):
        pieces = iter((engine.submit if n % 2 else engine.generate)(tokens(9, n), options(n)))
        assert next(pieces)
        del pieces
    idle(engine)
    assert_settled(engine)


def test_state_is_given_back_soon_while_others_are_busy() -> None:
    """A request that is left ends before the next round."""
    engine, model = fresh(context=2000)
    model.watch = lambda graph, pieces: time.sleep(0.001)  # the other thread's turn
    busy = engine.submit(tokens(9), options(0, 1500))
    left: dict[Handle, int] = {}  # rounds when the request was left
    ended: dict[Handle, int] = {}

    def note(request: Handle) -> None:
        if request.done:
            ended.setdefault(request, len(busy.rounds))

    while not busy.done and len(left) < 20:
        request = engine.submit(tokens(9, 1), options(1, 40))
        request.listen(partial(note, request))
        pieces = iter(request)
        next(pieces)
        del pieces
        left[request] = len(busy.rounds)
        with pytest.raises(TrigraphError, match="has been begun"):
            request.run()
    busy.cancel()
    idle(engine)
    assert len(left) >= 10
    assert ended.keys() == left.keys()
    assert max(ended[request] - rounds for request, rounds in left.items()) <= 2


def test_a_slow_consumer_holds_nobody_up() -> None:
    engine, _ = fresh()
    slow = iter(engine.submit(tokens(9), options()))
    text = next(slow)
    others = [engine.submit(tokens(9, n), options(n)) for n in range(1, 6)]
    assert [other.result() for other in others] == [expected(engine, n) for n in range(1, 6)]
    idle(engine)
    assert text + "".join(slow) == expected(engine, 0)


def test_a_request_refused_for_a_full_queue_leaves_nothing() -> None:
    engine, model = fresh(sequences=1, max_waiting=3)
    going = threading.Event()
    model.watch = lambda graph, pieces: going.wait()
    accepted, refused = [], 0
    for n in range(COUNT):
        try:
            accepted.append(engine.submit(tokens(9, n), options(n)))
        except QueueFullError:
            refused += 1
    assert len(accepted) == 4  # of which one runs
    going.set()
    assert [request.result() for request in accepted] == [expected(engine, n) for n in range(len(accepted))]
    idle(engine)
    assert_settled(engine)


async def collect(request: Handle) -> str:
    return "".join([piece async for piece in request])


def test_async_iteration_in_one_loop() -> None:
    engine, _ = fresh()

    async def work() -> list[str]:
        requests = [(engine.submit if n % 2 else engine.generate)(tokens(9, n), options(n)) for n in range(COUNT)]
        return await asyncio.gather(*map(collect, requests))

    assert asyncio.run(work()) == [expected(engine, n) for n in range(COUNT)]
    idle(engine)
    assert_settled(engine)


def test_async_iteration_in_several_loops() -> None:
    engine, _ = fresh()

    def one(n: int) -> str:
        return asyncio.run(collect(engine.submit(tokens(9, n), options(n))))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4 * COUNT))) == [expected(engine, n) for n in range(4 * COUNT)]
    idle(engine)
    assert_settled(engine)


def test_async_iterations_that_are_left_early() -> None:
    engine, _ = fresh(sequences=2)

    async def work() -> None:
        for n in range(COUNT):
            request = engine.submit(tokens(9, n), options(n, 40))
            task = asyncio.ensure_future(collect(request))
            await asyncio.sleep(0.001 * (n % 4))
            task.cancel()
            with pytest.raises((asyncio.CancelledError, AssertionError)):
                await task
                raise AssertionError("was done before")

    asyncio.run(work())
    idle(engine)
    assert_settled(engine)


def test_a_loop_that_was_closed() -> None:
    """Its request ends or goes on; the thread in the background survives."""
    engine, _ = fresh()
    loop = asyncio.new_event_loop()
    pieces = engine.submit(tokens(9), options(0, 40)).__aiter__()
    loop.run_until_complete(pieces.__anext__())
    loop.close()
    assert engine.submit(tokens(9, 1), options(1)).result() == expected(engine, 1)
    del pieces
    idle(engine)


def test_errors_reach_every_kind_of_waiting() -> None:
    engine, model = fresh()
    model.fail = True
    for n in range(3):
        with pytest.raises(RuntimeError, match="a step failed"):
            engine.submit(tokens(9, n), options()).result()
        with pytest.raises(RuntimeError, match="a step failed"):
            list(engine.submit(tokens(9, n), options()))
        with pytest.raises(RuntimeError, match="a step failed"):
            asyncio.run(collect(engine.submit(tokens(9, n), options())))
    model.fail = False
    assert engine.submit(tokens(9), options()).result() == expected(engine, 0)


def test_a_request_is_iterated_once_by_either_kind() -> None:
    engine, _ = fresh()
    request = engine.submit(tokens(9), options())
    assert asyncio.run(collect(request)) == request.result()
    with pytest.raises(TrigraphError, match="has been begun"):
        asyncio.run(collect(request))
