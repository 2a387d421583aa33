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

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.recording import RecordedRow
from trigraph.runtime.requests.text_stream import TextStream
from trigraph.runtime.requests.transcript import Transcript
from trigraph.runtime.scheduler.driver import EngineLoad
from trigraph.runtime.scheduler.prompt_ids import checked_prompt
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
    """A Backend whose engine is elsewhere. To be used in one event loop."""

    disk = None

    def __init__(self, description: Description, replicas: Replicas, max_waiting: int) -> None:
        """`max_waiting`: requests that may wait for their first token."""
        super().__init__(**vars(description))
        self.replicas = replicas
        self.outbox = Outbox()
        self.streams: set[RemoteStream] = set()
        """Those that were begun and are not done."""
        self._max_waiting = max_waiting
        self._renewing = asyncio.Lock()

    @property
    def load(self) -> EngineLoad:
        """What this front asks of the replicas; `kv_usage` is that of the fullest."""
        waiting = sum(stream.first_token is None for stream in self.streams)
        usage = max((stream.kv_usage for stream in self.streams), default=0.0)
        return EngineLoad(len(self.streams) - waiting, waiting, usage, self.pages, self.page_size)

    def close(self) -> None:
        """Ends nothing: the replicas are not this front's own."""

    async def outage(self) -> str | None:
        """Why no request can be computed just now, if so."""
        return await self.replicas.outage()

    def generate(
        self, prompt: list[int] | ImagePrompt, options: Options, *, checkpoints: Collection[int] = ()
    ) -> RemoteStream:
        """Continues `prompt`, from when the stream is begun. Raises TrigraphError when the prompt does not fit."""
        return RemoteStream(self, prompt, options, checkpoints)

    def enter(self, stream: RemoteStream) -> None:
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


class RemoteStream(TextStream):
    """A completion that replicas make, one after the other where one is lost."""

    def __init__(
        self, engine: RemoteEngine, prompt: list[int] | ImagePrompt, options: Options, checkpoints: Collection[int]
    ) -> None:
        shown = prompt if isinstance(prompt, ImagePrompt) else None
        given = prompt.ids if isinstance(prompt, ImagePrompt) else prompt
        ids = checked_prompt(given, options, engine.context, engine.vocab)
        super().__init__(ids, options, Transcript(engine.tokenizer, options, len(ids), engine.context), shown)
        self.kv_usage = 0.0
        self._engine = engine
        self._tokenizer, self._weights = engine.tokenizer, engine.identity.weights
        self._checkpoints = tuple(checkpoints)
        self._logprobs: list[TokenLogprob] = []
        self._hidden: list[NDArray[np.float32]] = []
        self._rows: list[RecordedRow] = []
        self._speculation = "unknown"
        self._fingerprint: str | None = None  # of the replica that began it
        self._preempted = 0  # at replicas that were lost
        self._task: asyncio.Task[None] | None = None

    @property
    def speculation(self) -> str:
        """How the replica speculates, and why not if it does not; "unknown" before its first token."""
        return self._speculation

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Log-probabilities of the tokens so far."""
        return self._logprobs

    @property
    def hidden(self) -> list[NDArray[np.float32]]:
        """Rows that the tokens so far were chosen from."""
        return self._hidden

    @property
    def rows(self) -> list[RecordedRow]:
        """Hashes of the logits of the tokens so far."""
        return self._rows

    def begin(self) -> None:
        """Joins the streams that wait. Raises QueueFullError."""
        if self not in self._engine.streams and not self.done:
            self._engine.enter(self)

    def work(self) -> None:
        """Starts to ask replicas, in a task of the event loop."""
        if self._task is None and not self.done:
            self._task = asyncio.create_task(self._run())

    def cancel(self) -> None:
        """Ends the completion, at the replica too."""
        self.transcript.cancel()
        if self._task is None:
            self._end()
        else:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._complete()
        except asyncio.CancelledError:
            self.transcript.cancel()
        except Exception as error:
            self.error = error
        finally:
            self._end()

    async def _complete(self) -> None:
        """Has replicas compute it until it is whole."""
        losses, pause, lost, first = 0, _FIRST_PAUSE, None, 0.0
        names: tuple[str, ...] = ()
        state: bytes | None = None
        whole = False
        while not self.transcript.finished:
            before = len(self.ids)
            images = await asyncio.to_thread(self._engine.outbox.packed, self.shown, whole=whole)
            ticket = Ticket(
                self.prompt,
                self.options,
                self._checkpoints,
                [*self.ids],
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
                self._preempted = self.preemptions
                if offer is not None:
                    continue
                if not losses or len(self.ids) > before:
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
        now = time.perf_counter()
        if self.first_token is None and (update.tokens or update.finish_reason is not None):
            self.first_token, self.started = now, now - update.prompt_seconds
            self.reused, self._fingerprint = update.reused, update.fingerprint
        for token in update.tokens:
            self.transcript.push(token)
        self._logprobs += update.logprobs
        self._hidden += update.hidden
        self._rows += update.rows
        self.rounds += [done._replace(ended=now) for done in update.rounds]
        self.preemptions = self._preempted + update.preemptions
        self.kv_usage, self._speculation = update.kv_usage, update.speculation
        if update.finish_reason is not None:
            self.transcript.end(update.finish_reason, update.sampled)
        self.notify()

    def _end(self) -> None:
        self._engine.streams.discard(self)
        self.done = True
        self.notify()
