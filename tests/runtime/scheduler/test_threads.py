"""One engine and several threads: they take turns, and every text is the one that a thread alone gets."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.fakes.engine import TEMPLATE, VOCAB, assert_settled, engine_of
from support.fakes.model import chaotic, mostly_right
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.scheduler.waiting import QueueFullError

THREADS = 4
LIMIT = 60
"""Seconds after which a test hangs."""


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads that are interrupted everywhere."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def fresh(drafts: bool = True) -> Engine:
    logits = chaotic(VOCAB)
    engine, model = engine_of(logits, draft=drafts, context=600, template=TEMPLATE, sequences=2 * THREADS)
    if drafts:
        model.guess = mostly_right(logits)
    return engine


def options(number: int) -> Options:
    return Options(Sampling(temperature=0.9, seed=number), max_tokens=24, ignore_eos=True)


def in_threads(work: Callable[[int], str]) -> list[str]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(3 * THREADS)))


@pytest.mark.parametrize("drafts", [False, True])
def test_completions_of_several_threads(drafts: bool) -> None:
    shared = fresh(drafts)
    expected = [fresh(drafts).generate([n, 1, 2], options(n)).run() for n in range(3 * THREADS)]
    assert in_threads(lambda n: shared.generate([n, 1, 2], options(n)).run()) == expected
    assert_settled(shared)


def test_conversations_of_several_threads(tmp_path: Path) -> None:
    def talk(engine: Engine, n: int) -> str:
        chat = engine.chat()
        first = "".join(chat.say(f"number {n}", options(n)))
        chat.save(tmp_path / f"{id(engine)}-{n}")
        chat.load(tmp_path / f"{id(engine)}-{n}")
        second = "".join(chat.say("go on", options(n)))
        return first + second

    shared = fresh()
    expected = [talk(fresh(), n) for n in range(3 * THREADS)]
    assert in_threads(lambda n: talk(shared, n)) == expected
    assert_settled(shared)


def test_completions_in_turns_within_a_thread() -> None:
    engine = fresh()
    both = [iter(engine.generate([n, 1], options(n))) for n in (1, 2)]
    texts = ["", ""]
    while any(pieces := [next(one, "") for one in both]):
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
    assert texts == [fresh().generate([n, 1], options(n)).run() for n in (1, 2)]


def test_a_completion_is_begun_once() -> None:
    engine = fresh()
    generation = engine.generate([1, 2], options(1))
    for _ in generation:
        break
    with pytest.raises(TrigraphError, match="has been begun"):
        generation.run()
    whole = engine.generate([1, 2], options(1))
    assert whole.run() == whole.run() == fresh().generate([1, 2], options(1)).run()


@pytest.mark.parametrize("waits", [Handle.result, lambda handle: asyncio.run(handle._whole())])
def test_a_beginning_that_is_refused_in_one_thread(
    waits: Callable[[Handle], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one that waits for the same request tries for itself."""
    engine = fresh()
    handle = engine.generate([1, 2], options(1))
    entering, going = threading.Event(), threading.Event()

    def refuse(handle: Handle) -> None:
        entering.set()
        going.wait(LIMIT)
        raise QueueFullError("full")

    with ThreadPoolExecutor(2) as pool, monkeypatch.context() as patched:
        patched.setattr(engine._driver, "enter", refuse)
        refused = pool.submit(handle.result, LIMIT)
        assert entering.wait(LIMIT)
        waiting = pool.submit(waits, handle)
        while not handle._wakers:
            time.sleep(0.001)
        patched.undo()
        going.set()
        with pytest.raises(QueueFullError):
            refused.result()
        try:
            assert waiting.result(LIMIT) == engine.generate([1, 2], options(1)).run()
        finally:
            handle.cancel()


def test_an_old_reply_does_not_take_a_conversation_back() -> None:
    chat = fresh().chat()
    first = chat.say("one", options(1))
    list(first)
    list(chat.say("two", options(1)))
    messages = [*chat.messages]
    assert list(first) == []
    assert chat.messages == messages


def test_steps_of_its_own_find_room_beside_cached_prefixes() -> None:
    engine = fresh()
    for n in range(40):
        engine.generate([n, *range(90)], options(n)).run()
    steps = engine.steps
    assert not steps.state.slots.free
    sequences = [steps.new_sequence() for _ in range(THREADS)]
    steps.prefill(sequences, [[5] * 300] * THREADS)
    children = [steps.fork(sequence) for sequence in sequences]
    steps.verify(children, [[1]] * THREADS)
    for sequence in (*sequences, *children):
        steps.release(sequence)
    assert_settled(engine)
