"""Completions by replicas of an engine. A stream outlives the replica that computes it: another one goes on.

A token's bits depend on the tokens before it, its random number on seed and position. So prompt, options and the tokens
so far are all that another replica needs; the front keeps them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Protocol

from trigraph.models.errors import TrigraphError
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.requests.completion import checked_prompt
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.options import Options
from trigraph.runtime.scheduler.driver import EngineLoad
from trigraph.runtime.scheduler.waiting import QueueFullError
from trigraph.runtime.server.cluster.replica import Description, Offer, OtherModelError, Ticket, Update
from trigraph.runtime.server.cluster.sent_images import Outbox, UnknownImagesError
from trigraph.runtime.server.errors import ApiError, log

_MOST_LOSSES = 10  # in a row without a token: then it may be the request that brings replicas down
_FEW_LOSSES, _LOSING_SECONDS = 3, 60.0  # in a row, and for so long: then the client hears of it
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds; twice as long each time


class ReplicaLostError(Exception):
    """A replica has gone, or does not do for the ticket: another one may."""

    def __init__(self, message: str = "", replica: str | None = None, offer: Offer | None = None) -> None:
        """`replica`: its name, where one had taken the ticket. `offer`: its own, where it would rather not go on."""
        super().__init__(message)
        self.replica, self.offer = replica, offer


class Replicas(Protocol):
    """Replicas of one engine."""

    def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        """Yields the rest of a completion from some replica. Raises ReplicaLostError when that is lost."""

    async def describe(self) -> Description:
        """Asks some replica what it runs."""

    async def outage(self) -> str | None:
        """Why no replica can compute a request just now, if so."""


class RemoteEngine(Description):
    """An engine that is elsewhere, as servers use one. To be used in one event loop."""

    disk = None

    def __init__(self, description: Description, replicas: Replicas, max_waiting: int) -> None:
        """`max_waiting`: requests that may wait for their first token."""
        super().__init__(**vars(description))
        self.replicas = replicas
        self.outbox = Outbox()
        self.streams: set[_Stream] = set()
        """The streams that were begun and are not done."""
        self._max_waiting = max_waiting
        self._renewing = asyncio.Lock()

    @property
    def load(self) -> EngineLoad:
        """What this front asks of the replicas; `kv_usage` is that of the fullest."""
        waiting = sum(stream.handle.first_token is None for stream in self.streams)
        usage = max((stream.kv_usage for stream in self.streams), default=0.0)
        return EngineLoad(len(self.streams) - waiting, waiting, usage, self.pages, self.page_size)

    def close(self) -> None:
        """Ends nothing: the replicas are not this front's own."""

    async def outage(self) -> str | None:
        """Why no request can be computed just now, if so."""
        return await self.replicas.outage()

    def generate(
        self, prompt: list[int] | ImagePrompt, options: Options, *, checkpoints: Collection[int] = ()
    ) -> Handle:
        """Continues `prompt`, from when the result is begun. Raises TrigraphError when the prompt does not fit."""
        return _Stream(self, prompt, options, checkpoints).handle

    def enter(self, stream: _Stream) -> None:
        """Takes note of a stream. Raises QueueFullError."""
        if self.load.waiting >= self._max_waiting:
            raise QueueFullError(f"{self._max_waiting} requests wait already; try again later, or raise max_waiting")
        self.streams.add(stream)

    async def renew(self, weights: str) -> None:
        """Learns what the replicas are, now that none has `weights` any more."""
        async with self._renewing:
            if self.identity.weights == weights:
                found = await self.replicas.describe()
                if found.tokenizer.as_json() == self.tokenizer.as_json():
                    found.tokenizer = self.tokenizer
                vars(self).update(vars(found))


class _Stream:
    """Brings a completion on that replicas make, one after the other where one is lost."""

    def __init__(
        self, engine: RemoteEngine, prompt: list[int] | ImagePrompt, options: Options, checkpoints: Collection[int]
    ) -> None:
        shown = prompt if isinstance(prompt, ImagePrompt) else None
        ids = checked_prompt(prompt, options, engine.context, engine.vocab)
        self.handle = Handle(ids, options.of_model(engine.sampling), engine.tokenizer, engine.context, shown=shown)
        self.handle.runner = self
        self.kv_usage = 0.0
        self._engine = engine
        self._tokenizer, self._weights = engine.tokenizer, engine.identity.weights
        self._checkpoints = tuple(checkpoints)
        self._fingerprint: str | None = None  # of the replica that began it
        self._preempted = 0  # at replicas that were lost
        self._task: asyncio.Task[None] | None = None

    def enter(self, handle: Handle) -> None:
        """Joins the streams that wait, and asks replicas in a task of the event loop. Raises QueueFullError."""
        self._engine.enter(self)
        self._task = asyncio.create_task(self._run())

    def cancel(self, handle: Handle, reason: str | None) -> None:
        """Ends the completion, at the replica too."""
        handle.finish(reason or "cancelled")
        if self._task is not None:
            self._task.cancel()
        self._end()

    def check_waiting(self) -> None:
        """Raises TrigraphError: a thread that waits would hold up the event loop."""
        raise TrigraphError("a completion of replicas is waited for in its event loop: await it, or use async for")

    async def _run(self) -> None:
        error: Exception | None = None
        try:
            await self._complete()
        except asyncio.CancelledError:
            self.handle.finish("cancelled")
        except Exception as failed:
            error = failed
        finally:
            self._end(error)

    async def _complete(self) -> None:
        """Has replicas compute it until it is whole."""
        handle = self.handle
        losses, pause, lost, first = 0, _FIRST_PAUSE, None, 0.0
        names: tuple[str, ...] = ()
        state: bytes | None = None
        whole = False
        while not handle.finished:
            before = len(handle.ids)
            images = await asyncio.to_thread(self._engine.outbox.packed, handle.shown, whole=whole)
            ticket = Ticket(
                handle.prompt,
                handle.options,
                self._checkpoints,
                [*handle.ids],
                self._weights,
                self._fingerprint,
                names,
                images,
                state,
            )
            try:
                async with aclosing(self._engine.replicas.complete(ticket)) as updates:
                    async for update in updates:
                        if lost is not None:
                            log.info("resumed on another replica after %.2f s", time.perf_counter() - lost)
                            lost = None
                        self._engine.outbox.arrived(images)
                        self._take(update)
            except UnknownImagesError:
                if whole:
                    raise
                whole = True
            except (ReplicaLostError, OtherModelError) as error:
                whole = False
                lost = lost or time.perf_counter()
                offer = None if isinstance(error, OtherModelError) else error.offer
                state = None if offer is None else offer.state
                if isinstance(error, OtherModelError):
                    await self._follow()
                elif error.replica is not None:
                    names = (*names, error.replica)
                self._preempted = handle.preemptions
                if offer is not None:
                    continue
                if not losses or len(handle.ids) > before:
                    losses, pause, first = 0, _FIRST_PAUSE, time.monotonic()
                losses += 1
                late = losses >= _FEW_LOSSES and time.monotonic() - first >= _LOSING_SECONDS
                if late or losses == _MOST_LOSSES:
                    message = f"{losses} replicas in a row were lost with this request, the last one so: {error}"
                    raise ApiError(message, 503 if late else 500, code="replicas_lost") from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _follow(self) -> None:
        """Turns to the model that the replicas have now, unless tokens of the old one are there."""
        if self._fingerprint is None:
            await self._engine.renew(self._weights)
            if self._engine.tokenizer is not self._tokenizer:
                raise ApiError("the model has just been replaced; send the request again", 503, code="model_replaced")
            self._weights = self._engine.identity.weights

    def _take(self, update: Update) -> None:
        handle, now = self.handle, time.perf_counter()
        if handle.first_token is None and (update.tokens or update.finish_reason is not None):
            handle.first_token, handle.started = now, now - update.prompt_seconds
            handle.reused, self._fingerprint = update.reused, update.fingerprint
        for token in update.tokens:
            handle.push(token)
        handle.logprobs += update.logprobs
        handle.hidden += update.hidden
        handle.rows += update.rows
        handle.rounds += [done._replace(ended=now) for done in update.rounds]
        handle.preemptions = self._preempted + update.preemptions
        self.kv_usage, speculation = update.kv_usage, update.speculation
        handle.report = lambda: speculation  # and nothing of this stream: the handle outlives it
        if update.finish_reason is not None:
            handle.sampled = update.sampled
            handle.finish(update.finish_reason)
        handle.notify()

    def _end(self, error: Exception | None = None) -> None:
        self._engine.streams.discard(self)
        if not self.handle.done:
            self.handle.end(error)
            self.handle.notify()
