"""What comes of a request: tokens and text, until something ends them, and when each came."""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError, kept, quote
from trigraph.runtime.images.prompt import ImagePrompt, PromptLengthError
from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.requests.options import Options
from trigraph.runtime.requests.recording import RecordedRow
from trigraph.runtime.requests.stats import Round, Stats, peak_memory
from trigraph.runtime.sampling.guide import Guide
from trigraph.runtime.text.lexemes import Ending
from trigraph.runtime.text.stop_strings import StopStrings
from trigraph.runtime.text.tokenizer import Detokenizer, Tokenizer

_log = logging.getLogger("trigraph.requests")


class Completion:
    """The ids and the text of a completion, until something finishes it, and who is told when it comes on.

    It ends at a stop token, a stop string, the token limit, the end of the context, or where `guide` lets nothing
    follow. One thread brings it on; any thread may look at it.
    """

    def __init__(
        self,
        prompt: list[int],
        options: Options,
        tokenizer: Tokenizer,
        context: int,
        *,
        guide: Guide | None = None,
        shown: ImagePrompt | None = None,
    ) -> None:
        """`shown`: the prompt with its images, if it has any."""
        self.prompt, self.options, self.shown = prompt, options, shown
        self.ids: list[int] = []
        """The token ids so far, without a final stop token."""
        self.sampled = 0
        """Tokens so far, with a final stop token."""
        self.text = ""
        """What was generated so far."""
        self.finish_reason: str | None = None
        self.done = False
        """Whether it has ended, with or without success, and holds no state."""
        self.error: BaseException | None = None
        """Why it failed."""
        self.logprobs: list[TokenLogprob] = []
        """The log-probabilities of the tokens so far, a final stop token's too; none unless the options ask for them.

        None of the tokens that were known.
        """
        self.hidden: list[NDArray[np.float32]] = []
        """The rows [hidden] that the tokens were chosen from, if asked for; none of the tokens that were known."""
        self.rows: list[RecordedRow] = []
        """The tokens so far, with hashes of their logits, if a receipt was asked for; none that were known."""
        self.rounds: list[Round] = []
        self.report: Callable[[], str] = lambda: "unknown"
        """Says how speculation went, in a few words."""
        self.reused = 0
        """Tokens of the prompt that a cache had."""
        self.preemptions = 0
        self.created = time.perf_counter()
        self.started: float | None = None
        self.first_token: float | None = None
        own = frozenset[int]() if options.ignore_eos else tokenizer.stop_ids
        self._stop_ids = own | frozenset(options.stop_tokens)
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(options.stop)
        self._guide = guide
        # Elsewhere: where the constraint ends with the last token that the limit allows, only its guide tells which.
        self._ends_elsewhere = options.constraint is not None and guide is None
        room = context - len(prompt)
        self._limited = options.max_tokens is not None and options.max_tokens <= room
        self._limit = room if options.max_tokens is None else min(options.max_tokens, room)
        self._listeners: list[Callable[[], object]] = []
        self._wakers = deque[Callable[[], object]]()  # of threads and event loops that wait; each is called once
        if self._limit == 0:
            self.finish("length" if self._limited else "context")

    @property
    def left(self) -> int:
        """How many more tokens it may take: what the token limit and the context leave."""
        return self._limit - self.sampled

    @property
    def finished(self) -> bool:
        """Whether it takes no more tokens."""
        return self.finish_reason is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that finished it, if one did."""
        return self._stops.match

    @property
    def ending(self) -> Ending:
        """How the reply has ended that it is the text of."""
        if self.finish_reason != "stop":
            return "cut"
        return "whole" if self.stop_string is None else "stopped"

    @property
    def speculation(self) -> str:
        """How speculation went, in a few words."""
        return self.report()

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
            tokens=self.sampled,
            seconds=self.rounds[-1].ended - self.first_token if self.rounds and self.first_token else 0.0,
            rounds=len(self.rounds),
            drafted=sum(r.drafted for r in self.rounds),
            accepted=sum(r.accepted for r in self.rounds),
            preemptions=self.preemptions,
            speculation=self.speculation,
            finish_reason=self.finish_reason or "unfinished",
            seed=self.options.chosen_by.seed,
            peak_memory=peak_memory(),
        )

    def push(self, token: int) -> bool:
        """Takes the next token; true when that finishes it."""
        if self.finish_reason is not None:
            return True
        self.sampled += 1
        if token in self._stop_ids:
            self.finish("stop")
            return True
        self.ids.append(token)
        text = self._detokenizer.push(token)
        self.text += self._stops.push(text) if self.options.stop else text
        if self._stops.match is not None:
            self.finish_reason = "stop"
        elif self._guide is not None and self._guide.finished:
            self.finish("stop")
        elif self.sampled == self._limit and not self._ends_elsewhere:
            self.finish("length" if self._limited else "context")
        else:
            return False
        return True

    def finish(self, reason: str) -> None:
        """Has it take no more tokens, unless that is so."""
        if self.finished:
            return
        self.finish_reason = reason
        if reason == "stop":  # elsewhere, a character is cut off that more tokens would have completed
            self.text += self._stops.push(self._detokenizer.flush())
        if not self._stops.found:
            self.text += self._stops.flush()

    def end(self, error: BaseException | None = None) -> None:
        """Takes note that it has ended, and holds no state."""
        self.error, self.done = kept(error), True

    def listen(self, listener: Callable[[], object]) -> None:
        """Has `listener` called after each round that it was part of, by the engine's thread, which waits for that.

        A listener may cancel and submit requests. It cannot wait for one; one that raises is not called again.
        """
        self._listeners.append(listener)

    def call_listeners(self) -> None:
        """Tells the listeners that it has come on. With its end they go: one that holds it would keep it in memory."""
        done = self.done
        for listener in [*self._listeners]:
            try:
                listener()
            except Exception:
                _log.exception("a listener of a completion raised; it is not called again")
                self._listeners.remove(listener)
        if done:
            self._listeners.clear()

    def wake(self) -> None:
        """Wakes who waits for it, later than it came on or at once. Any thread may do so."""
        with suppress(IndexError):
            for _ in range(len(self._wakers)):
                self._wakers.popleft()()


def checked_prompt(
    prompt: Iterable[SupportsIndex] | ImagePrompt, options: Options, context: int, vocab: int
) -> list[int]:
    """The token ids of a prompt. Raises TrigraphError when a model of this size cannot continue it as `options` say."""
    if not isinstance(options, Options):
        raise TrigraphError(f"options is {quote(options)}; it must be an Options")
    ids = token_ids("the prompt", prompt.ids if isinstance(prompt, ImagePrompt) else prompt)
    if not 1 <= len(ids) <= context:
        raise PromptLengthError.of(len(ids), context)
    check_vocabulary(ids, vocab)
    options.chosen_by.check_vocabulary(vocab)
    if options.forced:
        check_vocabulary([*options.forced], vocab)
        if (length := len(ids) + len(options.forced)) > context:
            raise TrigraphError(f"the prompt and forced have {length} tokens; the loaded context holds {context}")
    return ids


def token_ids(name: str, prompt: Iterable[SupportsIndex]) -> list[int]:
    """The ids as numbers. Raises TrigraphError for what is not a list of them."""
    try:
        if not isinstance(prompt, bytes):
            tokens: list[Any] = [*prompt]
            with suppress(OverflowError):
                return array("q", tokens).tolist()  # an eighth of the time
            return [index(token) for token in tokens]
    except TypeError:
        pass
    raise TrigraphError(f"{name} is {quote(prompt)}; it must be a string or a list of token ids")


def check_vocabulary(prompt: list[int], vocab: int) -> None:
    """Raises TrigraphError when an id is not one of `vocab` tokens."""
    if min(prompt) < 0 or max(prompt) >= vocab:
        raise TrigraphError(f"token ids must be from 0 to {vocab - 1}, found {min(prompt)} to {max(prompt)}")
