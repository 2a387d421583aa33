"""The engine's thread: no finalizer, fork or exit can hurt a request that it computes."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from support.fakes.engine import assert_settled
from support.fakes.rounds import LIMIT, alone, fresh, options, rest, tokens
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine
from trigraph.runtime.requests.handle import Handle

TESTS = Path(__file__).parents[2]


class Cycle:
    """Holds an iteration that was begun, and itself."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self.pieces, self.itself = pieces, self


def collecting_in(engine: Engine, every: int) -> None:
    """Has the engine's thread collect garbage at each so many lines that it runs of our code."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "runtime" not in frame.f_code.co_filename:
            return None
        count += 1
        if count % every == 0:
            gc.collect()
        return trace

    engine._driver.call(lambda: sys.settrace(trace))


@pytest.mark.slow
@pytest.mark.parametrize(("every", "count"), [(3, 15), (17, 40)])
def test_collections_in_the_middle_of_rounds(every: int, count: int) -> None:
    """Iterations left in cycles are closed by the collector, in the engine's thread, in the middle of its rounds."""
    rng = random.Random(every)
    engine, _ = fresh(context=200, sequences=4, pages=90)
    gc.collect()
    gc.freeze()  # collections are quick then
    gc.disable()
    try:
        collecting_in(engine, every)
        kept: list[tuple[int, Handle]] = []
        for number in range(count):
            abandoned = engine.submit(tokens(9, number % 7), options(number % 7, 40))
            pieces = iter(abandoned)
            if rng.random() < 0.8:
                next(pieces)
            Cycle(pieces)
            del pieces, abandoned
            if number % 5 == 0:
                kept.append((number % 7, engine.submit(tokens(12, number % 7), options(number % 7, 30))))
        for seed, request in kept:
            request.result(LIMIT)
            assert request.ids == alone(tokens(12, seed), options(seed, 30), 200)
        engine._driver.call(lambda: sys.settrace(None))
    finally:
        gc.enable()
        gc.unfreeze()
    rest(engine)
    assert_settled(engine)


def test_requests_that_are_abandoned_while_the_collector_runs_all_the_time() -> None:
    rng = random.Random(5)
    engine, _ = fresh(context=200, sequences=4, pages=90)
    errors: list[BaseException] = []

    def client(seed: int) -> None:
        try:
            for number in range(60):
                n = (seed + number) % 9
                request = (engine.submit if n % 2 else engine.generate)(tokens(9, n), options(n, 20))
                if rng.random() < 0.6:
                    pieces = iter(request)
                    next(pieces)
                    Cycle(pieces)
                    del pieces, request
                else:
                    request.run()
                    assert request.ids == alone(tokens(9, n), options(n, 20), 200)
        except BaseException as error:
            errors.append(error)

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    finally:
        gc.set_threshold(*before)
    assert not errors
    gc.collect()
    rest(engine)
    assert_settled(engine)


def test_a_cancel_before_the_beginning_ends_the_request_at_once() -> None:
    engine, _ = fresh()
    request = engine.generate(tokens(9), options())
    request.cancel()
    assert request.done
    assert request.run() == ""
    assert request.stats.finish_reason == "cancelled"
    assert engine._driver._marks.empty()
    assert engine._driver._thread is None


def test_a_dropped_engine_is_collected_and_its_thread_ends() -> None:
    engine, model = fresh()
    engine.generate(tokens(9), options()).run()
    rest(engine)
    thread, dropped = engine._driver._thread, weakref.ref(engine._driver)
    assert thread is not None
    del engine
    gc.collect()
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert dropped() is None
    assert model.runs


def test_a_request_outlives_the_name_of_its_engine() -> None:
    request = fresh()[0].submit(tokens(9), options())
    gc.collect()
    assert request.result(LIMIT)
    assert request.ids == alone(tokens(9), options())


def test_a_closed_engine() -> None:
    engine, model = fresh(context=2000)
    inside, going = threading.Event(), threading.Event()

    def watch(graph: str, pieces: object) -> None:
        inside.set()
        going.wait(LIMIT)

    model.watch = watch
    with engine as same:
        assert same is engine
        requests = [engine.submit(tokens(9, n), options(n, 1500)) for n in range(6)]
        inside.wait(LIMIT)
        threading.Timer(0.05, going.set).start()
    for request in requests:
        with pytest.raises(TrigraphError, match="the engine was closed before"):
            request.result(0)
    with pytest.raises(TrigraphError, match="the engine is closed"):
        engine.submit(tokens(9), options())
    with pytest.raises(TrigraphError, match="the engine is closed"):
        engine.generate(tokens(9), options()).run()
    engine.close()
    assert_settled(engine)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("used", [False, True])
def test_a_forked_child_gets_an_error_at_once(used: bool) -> None:
    engine, _ = fresh()
    if used:
        engine.generate(tokens(9), options()).run()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            engine.generate(tokens(9), options()).run()
            os.write(write, b"no error")
        except TrigraphError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert b"do not survive a fork" in answer.read()
    os.waitpid(child, 0)
    assert engine.generate(tokens(9), options()).run()


PROGRAM = """\
import sys, threading, time
from support.fakes.rounds import fresh, options, tokens
engine, model = fresh(context=60000)
model.watch = lambda graph, pieces: time.sleep(0.002)
def read():
    for piece in engine.generate(tokens(9), options(0, 50000)):
        pass
for _ in range(3):
    threading.Thread(target=read, daemon=True).start()
while len(model.runs) < 20:
    time.sleep(0.001)
print("leaving", flush=True)
"""


def test_an_exit_while_daemon_threads_iterate() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=LIMIT, cwd=TESTS, check=False
    )
    assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr
