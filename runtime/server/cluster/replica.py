"""The engine's side of a front: completes what tickets ask for, and tells what a front has to know of the model."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import astuple, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops import library_version
from trigraph.models.errors import TrigraphError
from trigraph.models.vision.config import VisionConfig
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.receipt.software import Software
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.recording import RecordedRow
from trigraph.runtime.requests.stats import Round
from trigraph.runtime.sampling.sampling import Sampling
from trigraph.runtime.server.cluster.sent_images import Inbox, SentImages
from trigraph.runtime.server.errors import log
from trigraph.runtime.server.heartbeat import alive
from trigraph.runtime.server.threads import in_thread
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

_OFFER_SECONDS = 1.0  # between offers of a request that waits
_GAP = 0.02  # seconds between updates, at least: they cost a front more than tokens do, and no reader sees it


class OtherModelError(TrigraphError):
    """A replica is asked to go on with what another model, or another version of the program, has begun."""


@dataclass
class Description:
    """What a front knows of the engines behind it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    context: int
    vocab: int
    identity: ModelIdentity
    sampling: Sampling
    tower: VisionConfig | None
    tower_sha256: str | None
    image_limits: ImageLimits
    pages: int
    """KV pages of an engine, each for `page_size` tokens."""
    page_size: int
    kernels: str
    """The instruction set; the bits do not depend on it."""
    fingerprint: str
    """Replicas with the same one continue each other's completions to the bit."""

    @classmethod
    def of(cls, engine: Engine) -> Description:
        """The description of an engine."""
        load = engine.load
        return cls(
            engine.tokenizer,
            engine.chat_template(),
            engine.context,
            engine.vocab,
            engine.identity,
            engine.sampling,
            engine.tower,
            engine.tower_sha256,
            engine.image_limits,
            load.pages,
            load.page_size,
            engine.model.kernels,
            fingerprint(engine),
        )

    def chat_template(self) -> ChatTemplate:
        """The chat template. Raises TrigraphError when the model has none."""
        return self.template


@dataclass(frozen=True)
class Ticket:
    """A completion to make, or to go on with."""

    prompt: list[int]
    options: Options
    checkpoints: tuple[int, ...]
    """Lengths of the prompt that later prompts will begin with."""
    completed: list[int]
    """The tokens that other replicas have made already."""
    weights: str
    """The hash of the model's weights: tokens of another model mean nothing."""
    fingerprint: str | None = None
    """The fingerprint of the replica that began the completion."""
    lost: tuple[str, ...] = ()
    """Names of replicas that had it and were lost."""
    images: SentImages | None = None
    """The images of the prompt, if it has any."""
    state: bytes | None = None
    """What the replica before gave of it; see Detached."""

    @property
    def large(self) -> bool:
        """Whether it may be too large for a message: it has state, or pixels."""
        return self.state is not None or (self.images is not None and bool(self.images.pixels))


class Offer(NamedTuple):
    """A replica would rather have another one go on."""

    state: bytes | None
    """See Detached."""
    ends: bool = True
    """Whether because it is to end; otherwise the request waits, and one with room may begin it. A request goes only
    once for that: memory may be short where room seems to be."""


class Update(NamedTuple):
    """What has come of a ticket since the update before."""

    tokens: list[int]
    """Without a final stop token."""
    rounds: list[Round]
    logprobs: list[TokenLogprob]
    hidden: list[NDArray[np.float32]]
    rows: list[RecordedRow]
    sampled: int
    """Tokens of the completion in all, a final stop token included."""
    reused: int
    preemptions: int
    prompt_seconds: float
    kv_usage: float
    speculation: str
    finish_reason: str | None
    """Why it has ended; None while it goes on."""
    fingerprint: str
    """The replica's, as in Description."""
    offer: Offer | None = None
    """Once while the replica drains, and again and again while the request waits; the replica goes on until the ticket
    is taken from it."""


class Replica:
    """An engine that serves fronts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.fingerprint = fingerprint(engine)
        self._drains = False
        self._requests: set[Handle] = set()  # that are not done
        self._inbox = Inbox()

    def describe(self) -> Description:
        """What a front has to know."""
        return Description.of(self.engine)

    def identify(self, roomy: bool = False) -> str:
        """Its fingerprint; "" where it is to end or, if `roomy`, has no room for one more request."""
        load = self.engine.load
        full = roomy and (load.waiting > 0 or load.running >= load.sequences)
        return "" if self._drains or full else self.fingerprint

    def drain(self) -> None:
        """From now on it offers its tickets to other replicas, as it is to end."""
        self._drains = True
        for request in [*self._requests]:
            request.notify()  # those that wait, too

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        """Computes a ticket; what it yields, put together, is the rest of the completion.

        Raises OtherModelError, UnknownImagesError, and what Engine.generate raises. One that is left early ends the
        request.
        """
        if ticket.weights != self.engine.identity.weights or ticket.fingerprint not in (None, self.fingerprint):
            raise OtherModelError(
                f"the completion was begun with weights {ticket.weights[:8]} and fingerprint {ticket.fingerprint}; "
                f"this replica has {self.engine.identity.weights[:8]} and {self.fingerprint}"
            )
        prompt = ticket.prompt if ticket.images is None else self._inbox.prompt(ticket.prompt, ticket.images)
        if ticket.state is not None:
            await asyncio.to_thread(self._adopt, ticket.state)
        generate = partial(self.engine.generate, checkpoints=ticket.checkpoints, completed=ticket.completed)
        request = await in_thread(generate, prompt, ticket.options)  # a constraint may take long to compile
        tokens, rounds, logprobs, hidden, rows, offered = len(ticket.completed), 0, 0, 0, 0, False
        self._requests.add(request)
        request.listen(lambda: self._requests.discard(request) if request.done else None)
        async with aclosing(request.news()) as news, aclosing(alive(news, _OFFER_SECONDS, "silence")) as found:
            async for sign in found:
                offer = Offer(None, ends=False) if sign == "silence" and _waits(request, ticket) else None
                if self._drains and not offered:
                    offer = await asyncio.to_thread(self._offer, request)
                    offered = offer is not None
                done = request.done  # looked at first: then all has come
                if len(request.ids) == tokens and not done and offer is None:
                    continue
                new = request.ids[tokens:]
                most = None if done else len(new)  # a round in progress may have recorded more
                update = Update(
                    new,
                    request.rounds[rounds:],
                    request.logprobs[logprobs:][:most],
                    request.hidden[hidden:][:most],
                    request.rows[rows:][:most],
                    request.sampled,
                    request.reused,
                    request.preemptions,
                    request.stats.prompt_seconds,
                    self.engine.load.kv_usage,
                    request.speculation,
                    request.finish_reason if done else None,
                    self.fingerprint,
                    offer,
                )
                tokens += len(update.tokens)
                rounds += len(update.rounds)
                logprobs += len(update.logprobs)
                hidden += len(update.hidden)
                rows += len(update.rows)
                told = time.monotonic()
                yield update
                if not done:
                    await asyncio.sleep(told + _GAP - time.monotonic())

    def _adopt(self, state: bytes) -> None:
        try:
            self.engine.adopt(state)
        except TrigraphError as error:  # it is computed again
            log.warning("the state of a stream cannot be used: %s", error)

    def _offer(self, request: Handle) -> Offer | None:
        try:
            return Offer(self.engine.peek(request).state)
        except TrigraphError:  # it is done
            return None


def _waits(request: Handle, ticket: Ticket) -> bool:
    """Whether nothing of it has been computed yet, and no replica has given it away before."""
    begun = request.started is not None or request.reading is not None or request.ids or request.done
    return not begun and not ticket.lost


def fingerprint(engine: Engine) -> str:
    """A hash of all that decides the tokens of a completion, beside its request."""
    library = "bodies" if engine.model.device.library is None else library_version(engine.model.device.operators)
    tower = "" if engine.model.vision is None else engine.model.vision.sha256
    parts = [str(engine.identity), engine.identity.weights, tower, library, engine.context, *astuple(Software.here())]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
