"""Who runs the rounds: whichever thread waits for a request, or one in the background while nobody does."""

from __future__ import annotations

import atexit
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trigraph.models.signals import deferred
from trigraph.runtime.model import Model
from trigraph.runtime.scheduler.request import Request
from trigraph.runtime.scheduler.scheduler import Scheduler
from trigraph.runtime.scheduler.waiting import Waiting


@dataclass(frozen=True)
class Load:
    """How busy an engine is: requests that are computed, those that wait, and the part of its KV pages in use."""

    running: int
    waiting: int
    kv_usage: float
    pages: int
    page_size: int
    """Tokens of a page."""


class Driver:
    """See Runner. A round is run by one thread, and brings the requests of all of them on; the others wait for its end.

    A request alone is decoded in its owner's thread: no switch of threads costs it anything.
    """

    def __init__(self, model: Model) -> None:
        self._waiting = Waiting(model.scheduling.max_waiting)
        self._scheduler = Scheduler(model, self._waiting)
        self._lock = model.steps.lock
        self._sequences = model.steps.state.sequences
        self._pages = model.steps.state.pages.size
        self._page_size = model.steps.state.limits.page_size
        self._changed = threading.Condition()
        self._driven = False  # whether some thread runs a round, or keeps others from it
        self._owner = 0  # that thread
        self._guests = 0  # threads that want the state between two rounds
        self._thread: threading.Thread | None = None
        self._stopped = False
        # A thread that is in the midst of a step when Python ends would bring the process down.
        atexit.register(_stop, weakref.ref(self))

    @property
    def load(self) -> Load:
        """How busy it is just now; what the prefix cache holds counts as free. Does not wait for a round to end."""
        active = self._scheduler.active
        sequences = [request.sequence for request in active]
        held = sum(sequence.page_count for sequence in sequences if sequence is not None)
        return Load(len(active), len(self._waiting), min(1.0, held / self._pages), self._pages, self._page_size)

    def enter(self, request: Request) -> None:
        """See Runner."""
        self._waiting.enter(request, self._sequences - len(self._scheduler.active))

    def advance(self, request: Request, shown: int, deadline: float | None = None) -> None:
        """See Runner."""
        while len(request.text) <= shown and not request.done and (deadline is None or time.monotonic() < deadline):
            # Ctrl-C waits for the end of a round, whoever runs it: it must not come while locks change hands.
            with deferred(signal.SIGINT):
                self._advance(deadline)

    def work(self) -> None:
        """See Runner."""
        with deferred(signal.SIGINT), self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="trigraph-rounds", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ends the work in the background after the round in progress."""
        with self._changed:
            self._stopped, thread = True, self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def cancel(self, request: Request) -> None:
        """See Runner."""
        self._waiting.cancel(request)

    def leave(self, request: Request) -> None:
        """See Runner."""
        with deferred(signal.SIGINT):
            self._waiting.cancel(request, None)
            while not request.done:
                if self._lock.acquire(blocking=False):  # also when this thread has it, in the midst of a round
                    try:
                        self._scheduler.end(request)
                    finally:
                        self._lock.release()
                else:  # who runs the rounds has it nearly always; the next one ends the request
                    self._advance(None)

    @contextmanager
    def between(self) -> Iterator[None]:
        """See Runner."""
        with deferred(signal.SIGINT):
            if self._driven and self._owner == threading.get_ident():  # in the midst of a round: a listener, say
                yield
                return
            with self._changed:
                self._guests += 1
                while self._driven:
                    self._changed.wait()
                self._guests -= 1
                self._drive()
            try:
                with self._lock:
                    yield
            finally:
                self._hand_on()

    def _advance(self, deadline: float | None) -> None:
        """Runs a round, or waits for the end of the one that another thread runs; or will, where a deadline counts."""
        with self._changed:
            if self._busy or (deadline is not None and self._thread is not None):
                self._changed.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                return
            self._drive()
        self._round()

    @property
    def _busy(self) -> bool:
        """Whether no round can begin."""
        return self._driven or self._guests > 0

    def _drive(self) -> None:
        self._driven, self._owner = True, threading.get_ident()

    def _round(self) -> None:
        """Runs a round; to be called by who drives, and does no more after that."""
        try:
            with self._lock:
                self._scheduler.round()
        finally:
            self._hand_on()

    def _hand_on(self) -> None:
        with self._changed:
            self._driven = False
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._busy and not self._stopped:
                    self._changed.wait()
                    continue
                if self._stopped or not (self._scheduler.active or self._waiting):
                    self._thread = None
                    self._changed.notify_all()
                    return
                self._drive()
            self._round()


def _stop(driver: weakref.ref[Driver]) -> None:
    if (found := driver()) is not None:
        found.stop()
