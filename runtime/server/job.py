"""What a client has asked for: completions while they are made."""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trigraph.models.errors import one_line
from trigraph.runtime.images.prompt import spelt
from trigraph.runtime.receipt.receipt import Receipt
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.scheduler.waiting import QueueFullError
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError, log
from trigraph.runtime.server.metrics import Metrics
from trigraph.runtime.server.threads import in_thread
from trigraph.runtime.text.reply import CallEnded, Content, Event, Reasoning
from trigraph.runtime.text.reply_parser import ReplyParser

LIMITS = frozenset({"length", "context", "timeout"})
NO_RECEIPT: Mapping[str, Any] = MappingProxyType({})


@dataclass
class Generation:
    """A request to the engine, whose text a parser takes apart; without one, all of it is content."""

    request: Handle
    parser: ReplyParser | None = None
    parallel_calls: bool = True
    """Whether a reply may have more than one tool call; else it ends with the first."""
    events: list[Event] = field(default_factory=list)
    """What has come so far."""
    called: bool = False
    """Whether it has a complete tool call."""
    reasoning_tokens: int = 0
    drafted: int = 0
    """Tokens that were drafted so far."""
    accepted: int = 0
    """Drafted tokens that were accepted."""
    metrics: Metrics | None = None
    """What is told how far it has come."""
    image_tokens: int = 0
    """The image tokens of the prompt."""
    shares_prompt: bool = False
    """Whether it is another completion of the prompt before it."""
    announces_prompt: bool = False
    """Whether `run` yields no events, too, where more of the prompt has been computed."""
    told: int = -1
    """Tokens of the prompt that were announced last."""
    _tokens: int = 0
    _rounds: int = 0
    _begun: bool = False

    async def run(self) -> AsyncIterator[list[Event]]:
        """Begins it, and yields its events as they come: those of a round together, in order."""
        self._begun = True
        try:
            async for piece in self._pieces():
                self._count()
                events: list[Event] = [] if not piece else [Content(piece)]
                if self.parser is not None:
                    events = self.parser.push(piece)
                if self._take(events) or not piece:
                    yield events
                if self.called and not self.parallel_calls:
                    return
            if self.parser is not None and self._take(events := self.parser.finish(self.request.ending)):
                yield events
        finally:
            self.cancel()
            self._count()
            if self.metrics is not None:
                self.metrics.ended(self.request)

    async def _pieces(self) -> AsyncIterator[str]:
        """The text in pieces; empty ones tell of the prompt: of what a cache had, then of what was computed."""
        shown, request = 0, self.request
        async with aclosing(request.news()) as news:
            async for _ in news:
                if self.announces_prompt and request.started is not None:
                    for done in (request.reused, request.progress[0]):
                        if done > self.told:
                            self.told = done
                            yield ""
                if len(text := self.request.text) > shown:
                    yield text[shown:]
                    shown = len(text)

    def cancel(self) -> None:
        """Ends it before the next round."""
        if not self.request.done:
            self.request.cancel()

    def close(self) -> None:
        """Ends it for good. One that was queued and never run, as its client had gone already, is counted here."""
        self.cancel()
        if not self._begun and self.metrics is not None:
            self._begun = True
            self.metrics.ended(self.request)

    @property
    def finish_reason(self) -> str:
        """Why it has ended: "call", or as in Stats. What a limit has cut says so, whatever calls came before."""
        reason = self.request.finish_reason or "stop"
        limited = reason in LIMITS and (self.parallel_calls or not self.called)
        return "call" if self.called and not limited else reason

    @property
    def text(self) -> str:
        """The content so far."""
        return "".join(event.text for event in self.events if isinstance(event, Content))

    def logprobs(self, start: int = 0) -> list[TokenLogprob]:
        """The log-probabilities of the tokens from number `start` on, a final stop token left out."""
        return self.request.logprobs[start : len(self.request.ids)]

    def _count(self) -> None:
        """Takes note of what the rounds since the last time have brought."""
        tokens, rounds = self.request.sampled, self.request.rounds[self._rounds :]
        if self.metrics is not None and tokens > self._tokens:
            # Read once: rounds go on meanwhile.
            new = range(self._rounds, self._rounds + len(rounds))
            self.metrics.advanced(self.request, range(self._tokens, tokens), new, shares_prompt=self.shares_prompt)
        self._tokens = tokens
        self._rounds += len(rounds)
        self.drafted += sum(done.drafted for done in rounds)
        self.accepted += sum(done.accepted for done in rounds)

    def _take(self, events: list[Event]) -> bool:
        for i, event in enumerate(events):
            if isinstance(event, Reasoning):
                self.reasoning_tokens = len(self.request.ids)
            elif isinstance(event, CallEnded):
                self.called = True
                if not self.parallel_calls:
                    del events[i + 1 :]
                    break
        self.events += events
        return bool(events)


class Job(ABC):
    """What a client has asked for: the generations, and how its API writes them."""

    model: ServedModel
    generations: Sequence[Generation]
    stream: bool
    ignored: Sequence[str] = ()
    """Sentences about what of the request the model is not told of."""

    async def result(self) -> Any:
        """The whole answer. A thread puts it together: log-probabilities of many tokens take long."""
        await self.finish()
        return await in_thread(self.written)

    async def finish(self) -> None:
        """Runs all generations to their end."""
        async for _ in merged(self.generations):
            pass

    @abstractmethod
    def written(self) -> Any:
        """The whole answer, once all generations have ended."""

    @abstractmethod
    def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, each whole."""

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """The event that ends a stream which has failed."""

    async def begin(self, generations: Sequence[Generation] | None = None) -> None:
        """Queues generations: all, unless some are given. Raises QueueFullError, and then none of them is queued."""
        begun: list[Generation] = []
        try:
            for generation in self.generations if generations is None else generations:
                generation.metrics = self.model.metrics
                generation.request.begin()
                begun.append(generation)
                if self.model.settings.log_prompts:
                    log.info("%s", spelt(self.model.engine.tokenizer, generation.request.prompt))
        except QueueFullError:
            self.cancel()
            for generation in begun:  # the next round takes them out, and somebody has to ask for one
                async for _ in generation.run():
                    pass
            raise

    def cancel(self) -> None:
        """Ends all generations before the next round."""
        for generation in self.generations:
            generation.cancel()

    def warnings(self) -> list[str]:
        """What of the request is ignored, and what of its schemas the answer is not held to; at most 20."""
        constraint = self.generations[0].request.options.constraint if self.generations else None
        notes = () if constraint is None else constraint.notes
        return [one_line(sentence) for sentence in [*self.ignored, *map(str, notes)][:20]]

    def log(self, path: str) -> None:
        """Says in the log what it has cost."""
        for generation in self.generations if log.isEnabledFor(logging.INFO) else ():
            log.info("%s: %s", path, generation.request.stats.line())

    def receipt(self, generation: Generation, wish: bool | str | None) -> Mapping[str, Any]:
        """The field `receipt` of a choice that has ended; nothing where none is wanted."""
        if not wish:
            return NO_RECEIPT
        engine, signer = self.model.engine, self.model.settings.signer
        receipt = Receipt.of(generation.request, engine.identity, engine.tower_sha256)
        if signer is not None:
            receipt = signer.sign(receipt)
        return {"receipt": (receipt.private() if wish == "private" else receipt).as_json()}


@dataclass(frozen=True)
class Usage:
    """What a client's request cost, in tokens; a prompt that several completions share counts once."""

    prompt: int
    images: int
    """Tokens of the prompt that are of images."""
    cached: int
    completion: int
    reasoning: int
    drafted: int
    accepted: int

    @classmethod
    def of(cls, generations: Sequence[Generation], choices: int = 1) -> Usage:
        """So far, of generations for one prompt after the other, `choices` for each."""
        firsts = [generation.request for generation in generations[::choices]]
        return cls(
            prompt=sum(len(request.prompt) for request in firsts),
            images=sum(generation.image_tokens for generation in generations[::choices]),
            cached=sum(request.reused for request in firsts),
            completion=sum(generation.request.sampled for generation in generations),
            reasoning=sum(generation.reasoning_tokens for generation in generations),
            drafted=sum(generation.drafted for generation in generations),
            accepted=sum(generation.accepted for generation in generations),
        )


async def merged(generations: Sequence[Generation]) -> AsyncIterator[tuple[int, list[Event]]]:
    """Runs generations at once: the number of one, and its next events. Raises what the first to fail raises."""
    if len(generations) == 1:
        async for events in generations[0].run():
            yield 0, events
        return
    queue: asyncio.Queue[tuple[int, list[Event]] | None] = asyncio.Queue()

    async def pump(number: int) -> None:
        try:
            async for events in generations[number].run():
                queue.put_nowait((number, events))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(number)) for number in range(len(generations))]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if item is not None:
                yield item
                continue
            left -= 1
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    raise error
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def sent_event(data: dict[str, Any], name: str | None = None) -> bytes:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
