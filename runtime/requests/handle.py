"""A completion in the making as its owner sees it, wherever it is computed."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Protocol

from trigraph.models.errors import TrigraphError, again
from trigraph.runtime.requests.completion import Completion
from trigraph.runtime.requests.request import Request

_PUBLIC = (  # the rest is for the engine
    *("cancel", "done", "error", "hidden", "ids", "listen", "logprobs", "options", "progress", "prompt", "reading"),
    *("result", "run", "speculation", "stats", "text"),
)


class Runner(Protocol):
    """Brings completions on: the engine's thread, or what asks replicas."""

    def enter(self, handle: Handle) -> None:
        """Queues a completion. Raises QueueFullError."""

    def cancel(self, handle: Handle, reason: str | None) -> None:
        """Ends it soon, and returns at once. None: what is there is no completion."""

    def check_waiting(self) -> None:
        """Raises TrigraphError where waiting for it would last for ever."""


class Handle(Completion):
    """A completion in the making: iterate, also with `async for`, to get its text in pieces; or `await` it, or take
    its `result`, for the whole text.

    It is iterated over once, and begins then unless it was submitted. An iteration that is left early ends it.
    """

    runner: Runner | None
    """What brings it on, until it is done; set by whoever makes the handle. A whole engine may hang on it."""
    request: Request | None = None
    """What rounds of this process need, until it is done."""
    _begun = _iterated = False

    def __repr__(self) -> str:
        state = self.finish_reason or ("unfinished" if self._begun else "not begun")
        return f"Request({len(self.prompt)} tokens of prompt, {len(self.ids)} generated, {state})"

    def __dir__(self) -> list[str]:
        return [*_PUBLIC]

    @property
    def progress(self) -> tuple[int, int]:
        """Tokens of the prompt that were computed or found in a cache, and all of them."""
        length, request = len(self.prompt), self.request
        if self.first_token is not None:
            return length, length
        sequence = None if request is None else request.sequence
        return min(0 if sequence is None else sequence.length, length), length

    @property
    def reading(self) -> tuple[int, float] | None:
        """The image that the prompt waits for: its number, from 1 on, and how much of it is read, from 0 to 1."""
        request = self.request
        return None if request is None else request.images.reading

    def begin(self) -> None:
        """Queues it, unless it was before. Raises QueueFullError."""
        if self._begun or self.done:
            return
        self._begun = True
        try:
            if (runner := self.runner) is not None:
                runner.enter(self)
        except BaseException:
            self._begun = False
            self.wake()  # others that wait for it try for themselves
            raise

    def cancel(self) -> None:
        """Ends the completion after the round in progress."""
        self._leave("cancelled")

    def end(self, error: BaseException | None = None) -> None:
        super().end(error)
        self.request = self.runner = None

    def result(self, timeout: float | None = None) -> str:
        """The whole text, when it is there. Raises TimeoutError after `timeout` seconds; the request goes on then."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self.begin()
        if not self._wait(lambda: self.done, deadline):
            raise TimeoutError(f"the completion is not done after {timeout} seconds")
        self._check()
        return self.text

    def run(self) -> str:
        """The whole text. An interrupt ends the request, whose state is free then."""
        try:
            for _ in self:
                pass
        except (KeyboardInterrupt, SystemExit):
            self._end()
            raise
        return self.text

    def __iter__(self) -> Iterator[str]:
        """Raises TrigraphError when an earlier iteration was left early."""
        if self._iterated:
            if not self.done or self.finish_reason is None:
                raise TrigraphError("this completion has been begun; call generate for another one")
            return
        self._iterated = True
        shown = 0
        try:
            self.begin()
            while (piece := self._since(shown)) != "":
                if piece is None:
                    self._wait(partial(self._beyond, shown))
                else:
                    yield piece
                    shown += len(piece)
        except GeneratorExit:  # perhaps the collector's, in the middle of anything: it must not wait
            self._leave(None)
            raise
        except BaseException:
            self._end()
            raise

    async def __aiter__(self) -> AsyncIterator[str]:
        shown = 0
        async with aclosing(self.news()) as news:
            async for _ in news:
                if len(text := self.text) > shown:
                    yield text[shown:]
                    shown = len(text)

    def __await__(self) -> Generator[Any, None, str]:
        """Gives the whole text. Cancelling what awaits it ends the completion."""
        return self._whole().__await__()

    async def _whole(self) -> str:
        async with aclosing(self.news(once=False)) as news:
            async for _ in news:
                pass
        return self.text

    async def news(self, *, once: bool = True) -> AsyncGenerator[None, None]:
        """Begins it, and yields when it has come on; the last time when it is done. Raises what it failed with.

        `once`: as an iteration; otherwise any number of callers may ask.
        """
        import asyncio  # which most programs do without

        if once and self._iterated:
            raise TrigraphError("this completion has been begun; call generate for another one")
        self._iterated = self._iterated or once
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(changed.set)

        try:
            while True:
                self._wakers.append(wake)
                self.begin()  # or again, where it was refused to another thread
                done = self.done  # looked at first: what comes with the end is seen
                yield
                if done:
                    break
                await changed.wait()
                changed.clear()
            self._check()
        finally:
            if not self.done:
                self.cancel()

    def notify(self) -> None:
        """Calls the listeners, and wakes who waits."""
        self.call_listeners()
        self.wake()

    def _wait(self, happened: Callable[[], bool], deadline: float | None = None) -> bool:
        """Waits until something is so, or the deadline (time.monotonic); whether it is.

        Each thread waits at a lock of its own: an interrupt at any moment leaves none held.
        """
        if not happened() and (runner := self.runner) is not None:
            runner.check_waiting()
        while not happened():
            sleeper = threading.Lock()
            sleeper.acquire()
            self._wakers.append(sleeper.release)
            self.begin()  # again, where it was refused to another thread
            seconds = -1 if deadline is None else deadline - time.monotonic()
            if happened() or (deadline is not None and seconds <= 0):
                break
            sleeper.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        return happened()

    def _leave(self, reason: str | None) -> None:
        """Has the request ended, and returns at once."""
        if self.done:
            return
        if self._begun:
            if (runner := self.runner) is not None:
                runner.cancel(self, reason)
            return
        if reason is not None:
            self.finish(reason)
        self.end()
        self.notify()

    def _end(self) -> None:
        """Ends the request, whose state is free when this returns."""
        self._leave(None)
        self._wait(lambda: self.done)

    def _beyond(self, shown: int) -> bool:
        """Whether there is more than the first `shown` characters, or will be no more."""
        return self.done or len(self.text) > shown

    def _since(self, shown: int) -> str | None:
        """The text behind the first `shown` characters; empty at the end, None where it is still to come."""
        done = self.done  # looked at first: what comes with the end is shown
        if len(text := self.text) > shown:
            return text[shown:]
        if done:
            self._check()
        return "" if done else None

    def _check(self) -> None:
        """Raises what it failed with."""
        if self.error is not None:
            raise again(self.error)
