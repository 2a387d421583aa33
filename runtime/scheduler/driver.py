"""The engine's thread: the only one that runs rounds and touches state."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from trigraph.models.errors import TrigraphError, kept
from trigraph.models.signals import deferred
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.requests.completion import Completion
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.scheduler.model import Model
from trigraph.runtime.scheduler.scheduler import Scheduler
from trigraph.runtime.scheduler.waiting import Waiting

_log = logging.getLogger("trigraph.engine")
_T = TypeVar("_T")
_Mark = Callable[[], object]
_PAUSE = 0.005  # seconds until the next look at requests of which none can be computed


@dataclass(frozen=True)
class EngineLoad:
    """How busy an engine is: requests that are computed, those that wait, and the part of its KV pages in use."""

    running: int
    waiting: int
    kv_usage: float
    pages: int
    page_size: int
    """Tokens of a page."""
    sequences: int = 0
    """Requests that can be computed at once; 0 where that is not known."""


class Driver:
    """Runs rounds in a thread that starts with the first request and ends with the engine.

    Other threads, finalizers and signal handlers leave marks, which the thread acts on between two rounds. Leaving one
    takes no lock, as a finalizer may run in the middle of anything.
    """

    def __init__(self, model: Model) -> None:
        self._waiting = Waiting(model.scheduling.max_waiting)
        self.scheduler = Scheduler(model, self._waiting)
        self.acceptance = Acceptance(model.steps.max_pending - 1)
        """How often drafts of the model were right."""
        # Readers compete with the engine's thread for Python's lock. So on a device that computes by itself they are
        # woken when the next round has been enqueued, and the device does not wait for what they do.
        self._to_wake = deque[Completion]()
        self._wakes_late = model.device.while_waiting(partial(_wake, self._to_wake))
        self._steps, self._vision = model.steps, model.vision
        self._marks: SimpleQueue[_Mark] = SimpleQueue()  # whose `put` may interrupt another one
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # of what begins and ends the thread; a finalizer may submit a request
        self.closed = False
        """Whether it takes no more requests."""
        self._in_round = False
        self._process = os.getpid()
        _drivers.add(self)

    @property
    def load(self) -> EngineLoad:
        """How busy it is just now; what the prefix cache holds counts as free. Does not wait for a round to end."""
        active = self.scheduler.active
        sequences = [request.sequence for request in active]
        held = sum(sequence.page_count for sequence in sequences if sequence is not None)
        state = self._steps.state
        pages, size = state.pages.size, state.limits.page_size
        return EngineLoad(len(active), len(self._waiting), min(1.0, held / pages), pages, size, state.sequences)

    def enter(self, handle: Handle) -> None:
        """Queues a request. Raises QueueFullError, or TrigraphError when the engine is closed."""
        if (request := handle.request) is None:  # another thread has cancelled it just now
            return
        with deferred(signal.SIGINT), self._lock:
            self._start()
            self._waiting.enter(request, self._steps.state.sequences - len(self.scheduler.active))
        self.wake()

    def cancel(self, handle: Handle, reason: str | None) -> None:
        """Ends the request before the next round; returns at once. None: what is there is no completion."""
        if (request := handle.request) is not None:
            self._marks.put(partial(self.scheduler.cancel, request, reason))

    def wake(self) -> None:
        """Has the thread look again at what can be computed."""
        self._marks.put(_nothing)

    def call(self, function: Callable[[], _T]) -> _T:
        """The result of `function`, which the engine's thread runs between two rounds."""
        self.check()
        if self._is_current():
            if self._in_round:
                raise TrigraphError("a finalizer interrupted a round, in which nothing else may touch the state")
            return function()
        future: Future[_T] = Future()
        with deferred(signal.SIGINT), self._lock:
            self._start()
            self._marks.put(partial(_answer, future, function))
        try:
            return future.result()
        finally:
            future.cancel()  # an interrupted caller wants it no more
            del future  # its error refers to this frame

    def check(self) -> None:
        """Raises TrigraphError in a process to which the engine's thread did not come along."""
        if os.getpid() != self._process:
            raise TrigraphError(
                f"the model was loaded by process {self._process}, and its threads do not survive a fork; load it in "
                "this process, or start processes with the method spawn"
            )

    def check_waiting(self) -> None:
        """Raises TrigraphError where waiting for a round would last for ever."""
        self.check()
        if self._is_current():
            raise TrigraphError(
                "a listener runs in the engine's thread and cannot wait for a completion; submit the request there, "
                "and wait in another thread"
            )

    def close(self) -> None:
        """Ends the thread after the round in progress. Requests that are not done fail."""
        if os.getpid() != self._process:
            return
        with deferred(signal.SIGINT), self._lock:
            self.closed, thread = True, self._thread
        self.wake()
        if thread is not None and not self._is_current():
            thread.join()
        if self._vision is not None:
            self._vision.close()

    def run_once(self, mark: _Mark | None = None) -> float | None:
        """Acts on the marks and runs a round; seconds until the next one is due, None while there is nothing to do.

        Called by the engine's thread alone. `mark`: one that it has taken out of the queue.
        """
        with self._steps.lock:
            self._in_round = True
            if mark is not None:
                self._act(mark)
            for _ in range(self._marks.qsize()):
                self._act(self._marks.get_nowait())
            came_on: object = None
            if self.closed:
                self.scheduler.fail(TrigraphError("the engine was closed before the completion was done"))
            elif self.scheduler.active or self._waiting:
                came_on = self._act(self.scheduler.round)
            self._in_round = False
        for request in self.scheduler.take_news():  # listeners run between rounds
            self._act(request.completion.call_listeners)
            self._to_wake.append(request.completion)
        if not (self._wakes_late and came_on and self.scheduler.active):
            _wake(self._to_wake)
        if not (self.scheduler.active or self._waiting):
            return None
        return 0 if came_on else _PAUSE

    def _act(self, mark: _Mark) -> object:
        try:
            return mark()
        except BaseException:  # whatever it is, all requests depend on this thread
            _log.exception("the engine goes on after an error")
            return None

    def _is_current(self) -> bool:
        """Whether this is the engine's thread."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def _start(self) -> None:
        """Starts the thread, unless it runs."""
        self.check()
        if self.closed:
            raise TrigraphError("the engine is closed; load the model again")
        if self._thread is None:
            marks = self._marks
            reference = weakref.ref(self, lambda _: marks.put(_nothing))
            thread = threading.Thread(target=_work, args=(reference, marks), name="trigraph-engine", daemon=True)
            thread.start()
            self._thread = thread


def _work(reference: weakref.ref[Driver], marks: SimpleQueue[_Mark]) -> None:
    """The engine's thread. While it waits, nothing in it keeps the engine alive."""
    pause: float | None = None
    while True:
        mark = _next(marks, pause)
        if (driver := reference()) is None:
            return
        closed = driver.closed
        pause = driver.run_once(mark)
        if closed:  # and what was asked for before that is done
            return
        del driver, mark


def _next(marks: SimpleQueue[_Mark], pause: float | None) -> _Mark | None:
    if pause == 0:
        return None
    with suppress(Empty):
        return marks.get(timeout=pause)
    return None


def _answer(future: Future[_T], function: Callable[[], _T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(kept(error))


def _nothing() -> None:
    pass


def _wake(completions: deque[Completion]) -> None:
    """Wakes who waits for them. Any thread may call it."""
    with suppress(IndexError):
        while completions:
            completions.popleft().wake()


_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Closes all engines: a thread in the middle of a step when Python ends would bring the process down."""
    for driver in [*_drivers]:
        driver.close()
