"""Ctrl-C while several threads have requests in the same rounds: it ends the main thread's, and hurts no other one."""

import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.fakes.engine import assert_settled
from support.fakes.rounds import alone, cut_text, fresh, options, tokens
from support.interrupts import Interrupts

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")


@pytest.mark.slow
def test_ctrl_c_beside_requests_of_other_threads() -> None:
    engine, _ = fresh(context=400)
    rng, interrupted, going = random.Random(3), 0, threading.Event()

    def others(thread: int) -> list[bool]:
        answers: list[bool] = []
        n = thread
        while not going.is_set() or len(answers) < 3:
            request = (engine.submit if n % 2 else engine.generate)(tokens(9, n % 8), options(n % 8))
            answers.append(request.run() == expected[n % 8])
            n += 3
        return answers

    expected = [cut_text(engine.tokenizer, alone(tokens(9, n), options(n), 400)) for n in range(8)]
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(others, thread) for thread in range(3)]
        try:
            for number in range(40):
                request = (engine.submit if number % 2 else engine.generate)(tokens(300, number), options(number, 30))
                try:
                    with Interrupts(max(1e-4, 0.08 * rng.random())):
                        request.run()
                except KeyboardInterrupt:
                    interrupted += 1
                    assert request.done
                assert request.ids == alone(tokens(300, number), options(number, 30), 400)[: len(request.ids)]
        finally:
            going.set()
        assert all(all(answer.result(60)) for answer in answers)
    assert interrupted > 5
    assert_settled(engine)


@pytest.mark.parametrize("submitted", [False, True])
def test_ctrl_c_in_the_midst_of_a_long_prompt(submitted: bool) -> None:
    """It takes effect within one chunk, of which there are a hundred, and what was computed is kept."""
    engine, model = fresh(context=2000)
    sent: list[int] = []

    def watch(graph: str, pieces: list[list[int]]) -> None:
        time.sleep(0.005)
        if len(model.runs) == 10:
            os.kill(os.getpid(), signal.SIGINT)
            sent.append(10)
        end = time.monotonic() + 60
        while len(model.runs) > 10 and not engine._driver._marks.qsize() and time.monotonic() < end:
            time.sleep(0.001)  # until the system has let the main thread run

    model.watch = watch
    request = (engine.submit if submitted else engine.generate)(tokens(1600), options())
    with pytest.raises(KeyboardInterrupt):
        request.run()
    assert request.done
    assert sent
    assert len(model.runs) <= 12
    assert request.ids == []
    model.watch = lambda graph, pieces: None
    again = engine.generate(tokens(1600), options())
    again.run()
    assert again.reused >= 160
    assert again.ids == alone(tokens(1600), options(), 2000)
    assert_settled(engine)
