"""One request: prompt in, text out in pieces, statistics at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trigraph.models.errors import TrigraphError
from trigraph.models.signals import undisturbed
from trigraph.runtime.decoding.constraint import Constraint, Guide
from trigraph.runtime.decoding.sampling import Sampler, Sampling
from trigraph.runtime.decoding.speculation import Round, decode
from trigraph.runtime.decoding.stats import Stats, peak_memory
from trigraph.runtime.execution.steps import StepResult
from trigraph.runtime.state.state import Sequence
from trigraph.runtime.text.tokenizer import Detokenizer, StopStrings, Tokenizer

if TYPE_CHECKING:
    from trigraph.runtime.engine import Engine


@dataclass(frozen=True)
class Options:
    """What a request asks for. `max_tokens` None: as many as the context holds."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    constraint: Constraint | None = None
    speculate: bool = True
    draft_tokens: int | None = None  # most drafts a round; None leaves that to the governor
    draft_p_min: float | None = None  # a draft less likely than this is not verified; None leaves that to the governor

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise TrigraphError(f"max_tokens is {self.max_tokens}; it must be 0 or more")
        if self.draft_tokens is not None and self.draft_tokens < 0:
            raise TrigraphError(f"draft_tokens is {self.draft_tokens}; it must be 0 or more")
        if self.draft_p_min is not None and not 0 <= self.draft_p_min <= 1:
            raise TrigraphError(f"draft_p_min is {self.draft_p_min}; it must be from 0 to 1")


class Transcript:
    """The answer so far: takes tokens until something ends it.

    That is a stop token, a stop string, the token limit, the end of the context, or `guide` where nothing may follow.
    """

    def __init__(
        self, tokenizer: Tokenizer, options: Options, prompt_length: int, context: int, guide: Guide | None = None
    ) -> None:
        self.ids: list[int] = []  # without a final stop token
        self.sampled = 0
        self.text = ""
        self.finish_reason: str | None = None
        self._stop_ids = frozenset[int]() if options.ignore_eos else tokenizer.stop_ids
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(options.stop)
        self._guide = guide
        room = context - prompt_length
        self._limited = options.max_tokens is not None and options.max_tokens <= room
        self._limit = room if options.max_tokens is None else min(options.max_tokens, room)
        if self._limit == 0:
            self._finish("length" if self._limited else "context")

    @property
    def left(self) -> int:
        """Tokens that the token limit and the context leave."""
        return self._limit - self.sampled

    def push(self, token: int) -> bool:
        """Takes the next token; true when the text ends with it."""
        if self.finish_reason is not None:
            return True
        self.sampled += 1
        if token in self._stop_ids:
            self._finish("stop")
            return True
        self.ids.append(token)
        self.text += self._stops.push(self._detokenizer.push(token))
        if self._stops.found:
            self.finish_reason = "stop"
        elif self._guide is not None and self._guide.finished:
            self._finish("stop")
        elif not self.left:
            self._finish("length" if self._limited else "context")
        return self.finish_reason is not None

    def cancel(self) -> None:
        """Ends the text as it is; the round in progress still finishes."""
        if self.finish_reason is None:
            self._finish("cancelled")

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason
        self.text += self._stops.push(self._detokenizer.flush())
        if not self._stops.found:
            self.text += self._stops.flush()


class Generation:
    """An answer in the making: iterate to get its text in pieces. `stats` counts what was done so far."""

    def __init__(
        self,
        engine: Engine,
        prompt: list[int],
        options: Options,
        sequence: Sequence | None = None,
        first: StepResult | None = None,
        pauses: Iterable[int] = (),
        pause: Callable[[Sequence, StepResult], None] | None = None,
    ) -> None:
        """`sequence`, if given, holds a beginning of `prompt` and goes on; else a new one is made, and released.

        `first` is the row of its last token, needed where that is the last one of the prompt.
        `pause`, if given, sees the sequence, and the row of its last token, after the first so many tokens of the
        prompt, for each number in `pauses` that is more than the sequence holds already.
        """
        engine.weights.check()
        if not 1 <= len(prompt) <= engine.context:
            raise TrigraphError(
                f"the prompt has {len(prompt)} tokens; it must have 1 to {engine.context}, the loaded context"
            )
        options.sampling.check_vocabulary(engine.steps.vocab)
        self._engine = engine
        self._prompt = prompt
        self._sequence = sequence
        self._first = first
        self._options = options
        self._pauses, self._pause = frozenset(pauses), pause
        self._guide = None if options.constraint is None else engine.guide(options.constraint)
        self._transcript = Transcript(engine.tokenizer, options, len(prompt), engine.context, self._guide)
        self._drafter, self._depth = engine.speculation(options)
        self._reused = sequence.length if sequence else 0
        self._prompt_seconds = 0.0
        self._rounds: list[Round] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return self._transcript.text

    @property
    def ids(self) -> list[int]:
        """The token ids so far, without a final stop token."""
        return self._transcript.ids

    @property
    def stats(self) -> Stats:
        """Counts and times so far; complete when the iteration has ended."""
        return Stats(
            prompt_tokens=len(self._prompt) - self._reused,
            reused_tokens=self._reused,
            prompt_seconds=self._prompt_seconds,
            tokens=self._transcript.sampled,
            seconds=sum(r.seconds for r in self._rounds),
            rounds=len(self._rounds),
            drafted=sum(r.drafted for r in self._rounds),
            accepted=sum(r.accepted for r in self._rounds),
            speculation=self._depth.report(),
            finish_reason=self._transcript.finish_reason or "unfinished",
            seed=self._options.sampling.seed,
            peak_memory=peak_memory(),
        )

    def cancel(self) -> None:
        """Ends the text after the round in progress."""
        self._transcript.cancel()

    def run(self) -> str:
        """The whole text."""
        for _ in self:
            pass
        return self.text

    def __iter__(self) -> Iterator[str]:
        shown = 0
        with closing(undisturbed(self._run())) as steps:
            for _ in steps:
                if len(self.text) > shown:
                    yield self.text[shown:]
                    shown = len(self.text)

    def _run(self) -> Generator[None, None, None]:
        sequence = self._sequence or self._engine.steps.new_sequence()
        try:
            yield from self._decode(sequence)
        finally:
            if self._sequence is None:
                self._engine.steps.release(sequence)

    def _decode(self, sequence: Sequence) -> Iterator[None]:
        steps, transcript = self._engine.steps, self._transcript
        sampler = Sampler(self._options.sampling, self._prompt, self._guide)
        started = time.perf_counter()
        first = self._first
        for stop in sorted({*self._pauses, len(self._prompt)}):
            if sequence.length < stop:
                first = steps.prefill([sequence], [self._prompt[sequence.length : stop]])
                if self._pause is not None and stop in self._pauses:
                    self._pause(sequence, first)
        self._prompt_seconds = time.perf_counter() - started
        if transcript.finish_reason is not None:
            return
        assert first is not None
        token = sampler.pick(first, 0, sequence.length)
        done = transcript.push(token)
        yield
        if done:
            return
        for finished in decode(steps, sequence, token, sampler, self._drafter, self._depth, transcript):
            self._rounds.append(finished)
            yield
