"""A request as its owner sees it: prompt in, text out in pieces, statistics at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Protocol, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import NDArray

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError
from trigraph.runtime.images.prompt import ImagePrompt, image_keys
from trigraph.runtime.model import Model
from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.recording import RecordedRow, RecordingSampler, sampler_of
from trigraph.runtime.requests.running import Running
from trigraph.runtime.requests.text_stream import TextStream
from trigraph.runtime.requests.transcript import Transcript
from trigraph.runtime.scheduler.bell import Bell
from trigraph.runtime.scheduler.prompt_ids import check_vocabulary, checked_prompt, token_ids
from trigraph.runtime.scheduler.prompt_images import PromptImages
from trigraph.runtime.state.sequence import Sequence

T = TypeVar("T")

_PUBLIC = (  # the rest is for the scheduler
    *("cancel", "done", "error", "hidden", "ids", "listen", "logprobs", "options", "progress", "prompt", "reading"),
    *("result", "run", "speculation", "stats", "text"),
)


class Runner(Protocol):
    """Takes requests and brings them on in a thread of its own; callable from any other one."""

    def enter(self, request: Request) -> None:
        """Queues the request."""

    def cancel(self, request: Request, reason: str | None = "cancelled") -> None:
        """Ends the request before the next round; returns at once. None: what is there is no completion."""

    def call(self, function: Callable[[], T]) -> T:
        """The result of `function`, which is run between two rounds."""

    def check(self) -> None:
        """Raises TrigraphError in a process to which the thread did not come along."""

    def check_waiting(self) -> None:
        """Raises TrigraphError where waiting for a round would last for ever."""


class Request(TextStream):
    """A completion in the making: iterate, also with `async for`, to get its text in pieces; or `await` it, or take
    its `result`, for the whole text.

    It is iterated over once, and begins then unless it was submitted. An iteration that is left early ends it.
    """

    def __init__(
        self,
        runner: Runner,
        model: Model,
        prompt: Iterable[SupportsIndex] | ImagePrompt,
        options: Options,
        *,
        completed: Iterable[SupportsIndex] = (),
        checkpoints: Collection[int] = (),
        priority: int = 0,
        timeout: float | None = None,
        finish: Callable[[list[int]], None] | None = None,
        replayed: list[int] | None = None,
    ) -> None:
        """`completed`: the completion's first tokens, which are known. `checkpoints`: lengths of the prompt that later
        prompts will begin with. `timeout`: seconds from now on until it ends as it is. `finish` is called with the
        tokens of prompt and completion, in the engine's thread, before the state is given back. `replayed`: the whole
        completion, a final stop token included, to be computed again; it fails with OtherTokenError at the first token
        that would be another one.
        """
        runner.check()
        model.weights.check()
        ids = checked_prompt(prompt, options, model.context, model.vocab)
        images = PromptImages.of(model.vision, prompt)
        if options.receipt:
            _check_receipt(model)
        if replayed:
            check_vocabulary(replayed, model.vocab)
        guide = None if options.constraint is None else model.guide(options.constraint)
        check("priority", priority, int)
        if timeout is not None:
            check("timeout", timeout, float, lambda seconds: seconds >= 0, "0 or more")
        transcript = Transcript(model.tokenizer, options, len(ids), model.context, guide)
        super().__init__(ids, options, transcript, images.shown)
        self.images = images  # those of the prompt
        self.tokens = image_keys(images.placed, ids)
        """The prompt as sequences and caches have it, with the keys of images in their places."""
        self.priority = priority
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.checkpoints = {length for length in checkpoints if 0 < length < len(self.prompt)}
        self.finish = finish
        said = [token for token in self.tokens if token >= 0]
        self.sampler = sampler_of(options, said, guide, model.thought(options, self.prompt), replayed)
        self.draft_length = model.draft_length(options)
        self.sequence: Sequence | None = None
        """What holds its state; None while it waits."""
        self.running: Running | None = None
        """Its part in the decoding loop, from the first token on."""
        self.found = 0
        """Tokens that the cache had when it was started last."""
        self.suspect_until = -1
        """The length up to which it decodes alone, as a step with it and others failed."""
        self.runner = runner
        self._begun = False
        self._bell = Bell()
        self._wakers.append(self._bell.ring)
        self.rank = (0, 0)
        """Orders requests; the queue sets it."""
        self._repeat(token_ids("completed", completed), model.vocab)

    def __repr__(self) -> str:
        state = self.transcript.finish_reason or ("unfinished" if self._begun else "not begun")
        return f"Request({len(self.prompt)} tokens of prompt, {len(self.ids)} generated, {state})"

    def __dir__(self) -> list[str]:
        return [*_PUBLIC]

    @property
    def target(self) -> list[int]:
        """The tokens that its state must hold before the next one can be sampled or verified."""
        return [*self.tokens, *self.ids[:-1]] if self.ids else self.tokens

    @property
    def target_length(self) -> int:
        """Length of `target`."""
        return len(self.prompt) + max(0, len(self.ids) - 1)

    @property
    def state(self) -> Sequence:
        """The sequence of a request that has one."""
        if self.sequence is None:
            raise RuntimeError("a request without state takes no part in a round")
        return self.sequence

    @property
    def decodes(self) -> bool:
        """Whether its state holds `target`, so that it takes part in verifies."""
        return self.running is not None and self.running.sequence is self.sequence

    @property
    def progress(self) -> tuple[int, int]:
        """Tokens of the prompt that were computed or found in a cache, and all of them."""
        length, sequence = len(self.prompt), self.sequence
        if self.first_token is not None:
            return length, length
        return min(0 if sequence is None else sequence.length, length), length

    @property
    def reading(self) -> tuple[int, float] | None:
        """The image that the prompt waits for: its number, from 1 on, and how much of it is read, from 0 to 1."""
        return None if self.done else self.images.reading

    @property
    def speculation(self) -> str:
        """How speculation went, in a few words."""
        return self.draft_length.report()

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Those of the tokens so far, a final stop token's too; none unless the options ask for them.

        None of the tokens that were known.
        """
        return self.sampler.logprobs if isinstance(self.sampler, RecordingSampler) else []

    @property
    def hidden(self) -> list[NDArray[np.float32]]:
        """The rows [hidden] that the tokens were chosen from, if asked for; none of the tokens that were known."""
        return self.sampler.hidden if isinstance(self.sampler, RecordingSampler) else []

    @property
    def rows(self) -> list[RecordedRow]:
        """The tokens so far, with hashes of their logits, if a receipt was asked for; none that were known."""
        return self.sampler.rows if isinstance(self.sampler, RecordingSampler) else []

    def cancel(self) -> None:
        """Ends the completion after the round in progress."""
        self._leave("cancelled")

    def begin(self) -> None:
        """Queues the request, unless it was before."""
        if self._begun or self.done:
            return
        self._begun = True
        try:
            self.runner.enter(self)
        except BaseException:
            self._begun = False
            raise

    def result(self, timeout: float | None = None) -> str:
        """The whole text, when it is there. Raises TimeoutError after `timeout` seconds; the request goes on then."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self.begin()
        if not self._wait(lambda: self.done, deadline):
            raise TimeoutError(f"the completion is not done after {timeout} seconds")
        if self.error is not None:
            raise self.error
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
            if not self.done or self.transcript.finish_reason is None:
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

    def _wait(self, happened: Callable[[], bool], deadline: float | None = None) -> bool:
        """Waits for a round after which something is so, until the deadline; whether it is."""
        if not happened():
            self.runner.check_waiting()
            self._bell.wait(happened, deadline)
        return happened()

    def _leave(self, reason: str | None) -> None:
        """Has the request ended, and returns at once."""
        if self.done:
            return
        if self._begun:
            self.runner.cancel(self, reason)
            return
        if reason is not None:
            self.transcript.cancel(reason)
        self.done = True
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
        if done and self.error is not None:
            raise self.error
        return "" if done else None

    def _repeat(self, completed: list[int], vocab: int) -> None:
        """Takes the known tokens, which leaves sampler and transcript as they were when the last one was chosen."""
        if completed:
            check_vocabulary(completed, vocab)
        for token in completed:
            self.sampler.take(token)
            self.transcript.push(token)
        if self.ids != completed:
            raise TrigraphError(
                f"completed has {len(completed)} tokens, and the completion ends before them; give what it had so far"
            )


def _check_receipt(model: Model) -> None:
    if model.device.library is None:
        raise TrigraphError(
            "a receipt needs the operator library: without it, bits depend on the processor; reinstall trigraph"
        )
