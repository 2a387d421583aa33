"""One request: prompt in, text out in pieces, statistics at the end."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from operator import index
from typing import SupportsIndex

from trigraph.models.errors import TrigraphError, quote
from trigraph.models.signals import undisturbed
from trigraph.runtime.cache.prefix import NoPrefix, Prefix, Resumed
from trigraph.runtime.decoding.draft_length import Round
from trigraph.runtime.decoding.options import Options
from trigraph.runtime.decoding.running import Running
from trigraph.runtime.decoding.sampling import Sampler
from trigraph.runtime.decoding.speculation import decode
from trigraph.runtime.decoding.stats import Stats, peak_memory
from trigraph.runtime.decoding.transcript import Transcript
from trigraph.runtime.model import Model


class Generation:
    """A completion in the making: iterate to get its text in pieces. `stats` counts what was done so far.

    It is iterated over once. Threads that share a model take turns, a round or a prompt each.
    """

    def __init__(self, model: Model, prompt: list[int], options: Options, prefix: Prefix | None = None) -> None:
        """`prefix`, unless given, is a new sequence."""
        if not isinstance(options, Options):
            raise TrigraphError(f"options is {quote(options)}; it must be an Options")
        prompt = _token_ids(prompt)
        model.weights.check()
        if not 1 <= len(prompt) <= model.context:
            raise TrigraphError(
                f"the prompt has {len(prompt)} tokens; it must have 1 to {model.context}, the loaded context"
            )
        options.sampling.check_vocabulary(model.steps.vocab)
        self._model = model
        self._prompt = prompt
        self._prefix = prefix or NoPrefix(model.steps)
        self._options = options
        self._guide = None if options.constraint is None else model.guide(options.constraint)
        self._transcript = Transcript(model.tokenizer, options, len(prompt), model.context, self._guide)
        self._draft_length = model.draft_length(options)
        self._begun = False
        self._reused = 0
        self._prompt_seconds = 0.0
        self._rounds: list[Round] = []

    @property
    def text(self) -> str:
        """What was generated so far."""
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
            speculation=self._draft_length.report(),
            finish_reason=self._transcript.finish_reason or "unfinished",
            seed=self._options.sampling.seed,
            peak_memory=peak_memory(),
        )

    def cancel(self) -> None:
        """Ends the completion after the round in progress."""
        self._transcript.cancel()

    def run(self) -> str:
        """The whole completion, as text."""
        for _ in self:
            pass
        return self.text

    def __iter__(self) -> Iterator[str]:
        """Raises TrigraphError when an earlier iteration has begun and not come to the end."""
        lock = self._model.steps.lock
        with lock:
            if self._begun and not self._transcript.finished:
                raise TrigraphError("this completion has been begun; call generate for another one")
            begun, self._begun = self._begun, True
        if begun:
            return
        shown = 0
        with closing(_in_turns(undisturbed(self._run()), lock)) as rounds:
            for _ in rounds:
                if len(self.text) > shown:
                    yield self.text[shown:]
                    shown = len(self.text)

    def _run(self) -> Generator[None, None, None]:
        start = self._prefix.resume(self._prompt)
        self._reused = start.sequence.length
        try:
            yield from self._decode(start)
        finally:
            self._prefix.finish(start.sequence)

    def _decode(self, start: Resumed) -> Iterator[None]:
        steps, transcript, sequence = self._model.steps, self._transcript, start.sequence
        sampler = Sampler(self._options.sampling, self._prompt, self._guide)
        started = time.perf_counter()
        row = start.row
        for stop in sorted({*start.checkpoints, len(self._prompt)}):
            if sequence.length < stop:
                row = steps.prefill([sequence], [self._prompt[sequence.length : stop]])
                if stop in start.checkpoints:
                    self._prefix.checkpoint(sequence, row)
        self._prompt_seconds = time.perf_counter() - started
        if transcript.finished:
            return
        assert row is not None
        request = Running(
            sequence,
            sampler.pick(row, 0, sequence.length),
            sampler,
            transcript,
            self._draft_length,
            self._options.draft_p_min or 0.0,
            self._rounds,
        )
        transcript.push(request.token)
        yield
        yield from decode(steps, [request], self._model.drafter, self._model.governor)


def _token_ids(prompt: Iterable[SupportsIndex]) -> list[int]:
    try:
        if not isinstance(prompt, bytes):
            return [index(token) for token in prompt]
    except TypeError:
        pass
    raise TrigraphError(f"the prompt is {quote(prompt)}; it must be a string or a list of token ids")


def _in_turns(items: Generator[None, None, None], lock: AbstractContextManager[object]) -> Generator[None, None, None]:
    """The same items, each made while `lock` is held. Closing it closes `items`."""
    try:
        while True:
            with lock:
                try:
                    next(items)
                except StopIteration:
                    return
            yield
    finally:
        with lock:
            items.close()
