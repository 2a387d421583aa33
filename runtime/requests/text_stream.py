"""A completion in the making as its owner sees it, wherever it is computed."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.recording import RecordedRow
from trigraph.runtime.requests.stats import Round, Stats, peak_memory
from trigraph.runtime.requests.transcript import Transcript

_log = logging.getLogger("trigraph.requests")


class TextStream(ABC):
    """`async for` gives the text in pieces, once. It begins then, unless it was begun before; leaving early ends it."""

    def __init__(
        self, prompt: list[int], options: Options, transcript: Transcript, shown: ImagePrompt | None = None
    ) -> None:
        self.prompt = prompt
        self.shown = shown
        """The prompt with its images, if it was given so."""
        self.options = options
        self.transcript = transcript
        self.rounds: list[Round] = []
        self.done = False
        """Whether it has ended, with or without success, and holds no state."""
        self.error: BaseException | None = None
        """Why it failed."""
        self.reused = 0
        """Tokens of the prompt that a cache had."""
        self.preemptions = 0
        self.created = time.perf_counter()
        self.started: float | None = None
        self.first_token: float | None = None
        self._iterated = False
        self._listeners: list[Callable[[], object]] = []
        self._wakers: list[Callable[[], object]] = []  # of threads and event loops that wait for it

    @abstractmethod
    def begin(self) -> None:
        """Queues it, unless it was before. Raises QueueFullError."""

    @abstractmethod
    def cancel(self) -> None:
        """Ends the completion after the round in progress."""

    def work(self) -> None:  # noqa: B027 (few need it)
        """Begins what its owner's event loop has to do for it, if anything."""

    @property
    @abstractmethod
    def speculation(self) -> str:
        """How speculation went, in a few words."""

    @property
    @abstractmethod
    def logprobs(self) -> list[TokenLogprob]:
        """Those of the tokens so far, a final stop token's too; none unless the options ask for them."""

    @property
    @abstractmethod
    def hidden(self) -> list[NDArray[np.float32]]:
        """The rows [hidden] that the tokens so far were chosen from; none unless the options ask for them."""

    @property
    @abstractmethod
    def rows(self) -> list[RecordedRow]:
        """The tokens so far, with hashes of their logits, a final stop token's too, where a receipt is asked for."""

    @property
    def progress(self) -> tuple[int, int]:
        """Tokens of the prompt that were computed or found in a cache, and all of them."""
        return 0 if self.first_token is None else len(self.prompt), len(self.prompt)

    @property
    def text(self) -> str:
        """What was generated so far."""
        return self.transcript.text

    @property
    def ids(self) -> list[int]:
        """The token ids so far, without a final stop token."""
        return self.transcript.ids

    @property
    def stats(self) -> Stats:
        """Counts and times so far; complete when it is done."""
        now = time.perf_counter()
        started = now if self.started is None else self.started
        return Stats(
            prompt_tokens=len(self.prompt) - self.reused,
            reused_tokens=self.reused,
            waiting_seconds=started - self.created,
            prompt_seconds=(now if self.first_token is None else self.first_token) - started,
            tokens=self.transcript.sampled,
            seconds=self.rounds[-1].ended - self.first_token if self.rounds and self.first_token else 0.0,
            rounds=len(self.rounds),
            drafted=sum(r.drafted for r in self.rounds),
            accepted=sum(r.accepted for r in self.rounds),
            preemptions=self.preemptions,
            speculation=self.speculation,
            finish_reason=self.transcript.finish_reason or "unfinished",
            seed=self.options.sampling.seed,
            peak_memory=peak_memory(),
        )

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
        async with aclosing(self._changes()) as changes:
            async for _ in changes:
                pass
        return self.text

    async def news(self) -> AsyncGenerator[None, None]:
        """Begins it, and yields when it has come on; the last time when it is done. Raises what it failed with."""
        if self._iterated:
            raise TrigraphError("this completion has been begun; call generate for another one")
        self._iterated = True
        async with aclosing(self._changes()) as changes:
            async for _ in changes:
                yield

    async def _changes(self) -> AsyncGenerator[None, None]:
        """The same, for any number of callers."""
        import asyncio  # which most programs do without

        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(changed.set)

        self._wakers.append(wake)
        try:
            self.begin()
            self.work()
            while True:
                done = self.done  # looked at first: what comes with the end is seen
                yield
                if done:
                    break
                await changed.wait()
                changed.clear()
            if self.error is not None:
                raise self.error
        finally:
            if not self.done:
                self.cancel()

    def listen(self, listener: Callable[[], object]) -> None:
        """Has `listener` called after each round that it was part of, by the engine's thread, which waits for that.

        A listener may cancel and submit requests. It cannot wait for one; one that raises is not called again.
        """
        self._listeners.append(listener)

    def notify(self) -> None:
        """Calls the listeners, and wakes who waits."""
        self.call_listeners()
        self.wake()

    def call_listeners(self) -> None:
        """Tells the listeners that it has come on."""
        _call(self._listeners)

    def wake(self) -> None:
        """Wakes who waits for it, later than it came on or at once."""
        _call(self._wakers)


def _call(listeners: list[Callable[[], object]]) -> None:
    for listener in [*listeners]:
        try:
            listener()
        except Exception:
            _log.exception("a listener of a completion raised; it is not called again")
            listeners.remove(listener)
