"""What a request asks for, and how far it has come: data, which loops elsewhere work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.decoding.constraint import Constraint, Guide
from trigraph.runtime.decoding.draft_length import DraftLength, Round
from trigraph.runtime.decoding.sampling import Sampler, Sampling
from trigraph.runtime.state.sequence import Sequence
from trigraph.runtime.text.stop_strings import StopStrings
from trigraph.runtime.text.tokenizer import Detokenizer, Tokenizer


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
        if not isinstance(self.sampling, Sampling):
            raise TrigraphError(f"sampling is {quote(self.sampling)}; it must be a Sampling")
        if not (self.constraint is None or isinstance(self.constraint, Constraint)):
            raise TrigraphError(f"constraint is {quote(self.constraint)}; it must be a JsonSchema, Grammar or Regex")
        if not (isinstance(self.stop, tuple | list) and all(isinstance(stop, str) for stop in self.stop)):
            raise TrigraphError(f"stop is {quote(self.stop)}; it must be a tuple of strings")
        check("ignore_eos", self.ignore_eos, bool)
        check("speculate", self.speculate, bool)
        for name in ("max_tokens", "draft_tokens"):
            if getattr(self, name) is not None:
                check(name, getattr(self, name), int, lambda value: value >= 0, "0 or more")
        if self.draft_p_min is not None:
            check("draft_p_min", self.draft_p_min, float, lambda value: 0 <= value <= 1, "from 0 to 1")


class Completion(Protocol):
    """Takes the tokens of a request as they are chosen."""

    @property
    def left(self) -> int:
        """How many more tokens it may take: what the token limit and the context leave."""

    @property
    def finished(self) -> bool:
        """Whether it takes no more."""

    def push(self, token: int) -> bool:
        """Takes the next token; true when that finishes it."""


class Transcript:
    """The ids and the text of a completion, until something finishes it.

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
        """See Completion."""
        return self._limit - self.sampled

    @property
    def finished(self) -> bool:
        """See Completion."""
        return self.finish_reason is not None

    def push(self, token: int) -> bool:
        """See Completion."""
        if self.finished:
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
        return self.finished

    def cancel(self) -> None:
        """Ends the completion as it is; the round in progress still finishes."""
        if not self.finished:
            self._finish("cancelled")

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason
        self.text += self._stops.push(self._detokenizer.flush())
        if not self._stops.found:
            self.text += self._stops.flush()


@dataclass
class Request:
    """One sequence in the decoding loop."""

    sequence: Sequence
    token: int
    """The next one of the sequence: sampled, but not in the state yet."""
    sampler: Sampler
    completion: Completion
    draft_length: DraftLength
    draft_p_min: float = 0.0
    """A draft less likely than this is not verified."""
    rounds: list[Round] = field(default_factory=list)
    """What the loop has done so far."""
