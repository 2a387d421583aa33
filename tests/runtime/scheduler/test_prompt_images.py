"""Requests with images: what is refused, and what looks at tokens of text alone."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from support.models.seeing import SeeingPackages, picture, prompt_of
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.images.prompt import ImagePrompt


@pytest.fixture(scope="module")
def engine(seeing: SeeingPackages) -> Iterator[Engine]:
    with load(seeing("tiny-dense", "F32"), context=256, threads=1) as engine:
        yield engine


def test_penalties_and_drafts_of_text_alone(engine: Engine) -> None:
    """Neither looks at the tokens of images, although the text around them repeats itself."""
    shown = picture((2, 3))
    ids = prompt_of(12, seed=3).ids
    repeated = ImagePrompt(
        (*ids, *[0] * 6, *ids, *[0] * 6, *ids[:-2]),
        tuple(prompt_of(12, shown, 12, shown, 10).images),
        (shown, shown),
    )
    for sampling in (
        Sampling(temperature=0),
        Sampling(temperature=0.8, seed=5, repeat_penalty=1.4, penalty_window=-1, presence_penalty=0.5),
    ):
        plain = engine.submit(repeated, Options(sampling, 30, ignore_eos=True, speculate=False))
        plain.result()
        for drafter in ("ngram", "mtp", "auto"):
            request = engine.submit(repeated, Options(sampling, 30, ignore_eos=True, drafter=drafter, draft_tokens=7))
            request.result()
            assert request.ids == plain.ids
    text = prompt_of(*[len(repeated.ids)]).ids
    assert engine.generate(repeated).prompt == list(repeated.ids) and min(text) >= 0


def test_what_is_refused(engine: Engine, seeing: SeeingPackages, packages: object) -> None:
    prompt = prompt_of(3, (2, 2), 3)
    for method in (engine.score, engine.embed):
        with pytest.raises(TrigraphError, match="are of text alone; leave the images out"):
            method(prompt)
        method(ImagePrompt(prompt.ids))
    with (
        load(packages("tiny-dense", "F32")) as blind,  # type: ignore[operator]
        pytest.raises(TrigraphError, match=r"no vision tower.*put the model's mmproj-\*\.gguf beside its file"),
    ):
        blind.submit(prompt)
    with pytest.raises(TrigraphError, match="has 261 tokens; it must have 1 to 256"):
        engine.submit(prompt_of(5, (16, 16)))


def test_a_tower_that_is_interrupted_goes_with_its_engine(
    seeing: SeeingPackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: nobody asks any more for the error that its image ends with."""
    reading, going = threading.Event(), threading.Event()

    def fail(*_: object) -> None:
        reading.set()
        going.wait(60)
        raise TrigraphError("a step failed")

    monkeypatch.setattr("trigraph.runtime.execution.vision._Tower.run", fail)
    engine = load(seeing("tiny-dense", "F32"), context=256, threads=1)
    request = engine.submit(prompt_of(3, (2, 5), 3), Options(max_tokens=5))
    assert reading.wait(60)
    request.cancel()
    request.result(60)
    vision = engine.model.vision
    assert vision is not None and vision._thread is not None and vision._thread._thread is not None
    threads, tower = [vision._thread._thread, engine._driver._thread], weakref.ref(vision._tower)
    gc.collect()
    gc.disable()
    try:
        del engine, vision
        going.set()
        for thread in threads:
            assert thread is not None
            thread.join(60)
        assert tower() is None
    finally:
        gc.enable()


def test_a_tower_that_fails_fails_one_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room for the tower")

    vision = engine.model.vision
    assert vision is not None
    with monkeypatch.context() as patch:
        patch.setattr(vision, "rows", fail)
        failing = engine.submit(prompt_of(3, (2, 5), 3, seed=8), Options(max_tokens=5))
        beside = engine.submit(prompt_of(9, seed=9), Options(max_tokens=5, ignore_eos=True))
        with pytest.raises(MemoryError, match="no room for the tower"):
            failing.result()
        beside.result()
    engine.submit(prompt_of(3, (2, 5), 3, seed=8), Options(max_tokens=5)).result()


class HeldTower:
    """A tower that computes an image when it is let."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        assert engine.model.vision is not None
        tower = engine.model.vision._tower
        self.begun, self._go, self._run = 0, threading.Semaphore(0), tower.run
        monkeypatch.setattr(tower, "run", self._held)

    def let(self) -> None:
        self._go.release()

    def _held(self, pixels: Any) -> np.ndarray:
        self.begun += 1
        assert self._go.acquire(timeout=30)
        return self._run(pixels)


def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen")


def test_streams_go_on_while_an_image_is_read(seeing: SeeingPackages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests beside it begin and end, and the text in front of the image is computed."""
    options = Options(Sampling(temperature=0), 8, ignore_eos=True)
    prompts = [prompt_of(7, (2, 5), 3, (1, 4), 2, seed=8), prompt_of(9, seed=9), prompt_of(12, seed=10)]
    with load(seeing("tiny-dense", "F32"), context=256, threads=1) as engine:
        expected = [(request := engine.submit(prompt, options)).result() and request.ids for prompt in prompts]
    with load(seeing("tiny-dense", "F32"), context=256, threads=1, chunk=4) as engine:
        tower = HeldTower(engine, monkeypatch)
        shown = engine.submit(prompts[0], options)
        for prompt, ids in zip(prompts[1:], expected[1:], strict=True):
            request = engine.submit(prompt, options)
            request.result(30)
            assert request.ids == ids
        eventually(lambda: shown.progress == (7, 26))
        tower.let()
        eventually(lambda: shown.progress == (20, 26) and tower.begun == 2)
        tower.let()
        shown.result(30)
        assert shown.ids == expected[0]


def test_what_is_read_just_now(seeing: SeeingPackages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the image, and how much of it."""
    with load(seeing("tiny-dense", "F32"), context=256, threads=1) as engine:
        tower = HeldTower(engine, monkeypatch)
        request = engine.submit(prompt_of(7, (2, 5), 3, (1, 4), 2, seed=8), Options(max_tokens=4))
        eventually(lambda: request.reading == (1, 0.0))
        tower.let()
        eventually(lambda: request.reading == (2, 0.0))
        tower.let()
        request.result(30)
        assert request.reading is None


def test_progress_counts_layers(seeing: SeeingPackages) -> None:
    with load(seeing("tiny-dense", "F32"), context=256, threads=1) as engine:
        graph = engine.model.vision._tower._open()  # type: ignore[union-attr]
        for _ in range(2):
            graph.run(picture((2, 3)))
            assert graph.progress == 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no priorities of threads")
def test_the_tower_steps_back(seeing: SeeingPackages) -> None:
    """Its threads leave the processors to those of decoding."""
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    if own > 14:
        pytest.skip("this process steps back as far as there is already; start it with nice 14 at most")

    def priority(task: int) -> int | None:
        with suppress(ProcessLookupError):  # it has ended since it was listed
            return os.getpriority(os.PRIO_PROCESS, task)
        return None

    def polite() -> int:
        return [priority(int(task)) for task in os.listdir("/proc/self/task")].count(own + 5)

    gc.collect()  # engines that nobody has would take their threads along in the midst of it
    with load(seeing("tiny-dense", "F32"), context=256, threads=2) as engine:
        before = polite()
        engine.submit(prompt_of(9), Options(max_tokens=2)).result()
        assert polite() == before
        engine.submit(prompt_of(7, (2, 5), 3), Options(max_tokens=2)).result()
        assert polite() == before + 2


def test_a_request_that_ends_while_its_image_is_read(seeing: SeeingPackages, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its owner or the clock; what is read is kept for the next one."""
    options = Options(Sampling(temperature=0), 4, ignore_eos=True)
    prompt = prompt_of(7, (2, 5), 3)
    with load(seeing("tiny-dense", "F32"), context=256, threads=1) as engine:
        tower = HeldTower(engine, monkeypatch)
        requests = [engine.submit(prompt, options), engine.submit(prompt, options, timeout=0.2)]
        eventually(lambda: tower.begun == 1)
        requests[0].cancel()
        for request in requests:
            assert request.result(30) == "" and request.ids == []
        tower.let()
        engine.submit(prompt, options).result(30)
        assert tower.begun == 1


def test_an_engine_that_is_closed_while_it_reads(seeing: SeeingPackages, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {*threading.enumerate()}
    with load(seeing("tiny-dense", "F32"), context=256, threads=1) as engine:
        tower = HeldTower(engine, monkeypatch)
        request = engine.submit(prompt_of(7, (2, 5), 3))
        eventually(lambda: tower.begun == 1)
        threading.Timer(0.2, tower.let).start()
    with pytest.raises(TrigraphError, match="the engine was closed before the completion was done"):
        request.result()
    assert not [thread for thread in {*threading.enumerate()} - before if thread.name == "trigraph-tower"]
