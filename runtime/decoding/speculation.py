"""Speculative decoding: draft, verify, keep what the request's own sampler agrees with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

from trigraph.runtime.decoding.sampling import Sampler
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence


class Answer(Protocol):
    """Takes the tokens of a text as they are chosen."""

    @property
    def left(self) -> int:
        """How many more tokens it may take: what the token limit and the context leave."""

    def push(self, token: int) -> bool:
        """Takes the next token; true when the text ends with it."""


class Drafter(Protocol):
    """Guesses how a text goes on."""

    def propose(self, sequence: Sequence, token: int, limit: int) -> list[int]:
        """At most `limit` tokens to follow `token`, which itself follows the committed text."""


class DraftLength(Protocol):
    """Decides how many tokens a round drafts."""

    def choose(self, room: int) -> int:
        """The most drafts of the next round, at most `room`."""

    def observe(self, finished: Round) -> None:
        """Learns what the round brought and cost."""

    def report(self) -> str:
        """What was decided and why, in a few words for the statistics."""


@dataclass(frozen=True)
class Round:
    """What one verify brought: the tokens it added to the text, and how many of the drafted ones are among them."""

    tokens: SequenceOf[int]
    drafted: int
    accepted: int
    draft_seconds: float
    seconds: float


def decode(
    steps: Steps,
    sequence: Sequence,
    token: int,
    sampler: Sampler,
    drafter: Drafter,
    depth: DraftLength,
    answer: Answer,
) -> Iterator[Round]:
    """Continues a text until `answer` ends, a round at a time, from its next token: sampled, but not in the state yet.

    No token beyond the end is kept. The last token of a round is never in the state: the next round verifies it.
    Tokens that a constraint forces take the place of drafts, and nothing is to be learnt from them.
    """
    done = False
    while not done:
        started = time.perf_counter()
        room = min(answer.left, steps.max_pending) - 1
        foreseen = sampler.forced(room)
        drafts = foreseen or drafter.propose(sequence, token, depth.choose(room))
        drafted = time.perf_counter()
        step = steps.verify([sequence], [[token, *drafts]])
        kept: list[int] = []
        for row, draft in enumerate([*drafts, None]):
            token = sampler.pick(step, row, sequence.length + row + 1)
            kept.append(token)
            done = answer.push(token)
            if done or token != draft:
                break
        steps.accept(sequence, len(kept))
        agreed = sum(a == b for a, b in zip(kept, drafts, strict=False))
        times = drafted - started, time.perf_counter() - started
        finished = Round(kept, 0, 0, *times) if foreseen else Round(kept, len(drafts), agreed, *times)
        if not foreseen:
            depth.observe(finished)
        yield finished


class MTPDrafter:
    """Drafts with the model's MTP head, until its probability of a token falls under `floor`."""

    def __init__(self, steps: Steps, floor: float) -> None:
        self._steps = steps
        self._floor = floor

    def propose(self, sequence: Sequence, token: int, limit: int) -> list[int]:
        """See Drafter."""
        if limit == 0:
            return []
        drafts: list[int] = []
        guess = self._steps.draft([sequence], [token])
        while guess.probability[0] >= self._floor:
            drafts.append(int(guess.tokens[0]))
            if len(drafts) == limit:
                break
            guess = self._steps.draft_more([sequence], guess)
        return drafts


class NoDrafter:
    """Plain decoding."""

    def propose(self, sequence: Sequence, token: int, limit: int) -> list[int]:
        """See Drafter: nothing."""
        return []


@dataclass(frozen=True)
class FixedLength:
    """The same number of drafts in each round, for a stated reason."""

    drafts: int
    reason: str

    def choose(self, room: int) -> int:
        """See DraftLength."""
        return min(self.drafts, room)

    def observe(self, finished: Round) -> None:
        """See DraftLength: nothing to learn."""

    def report(self) -> str:
        """See DraftLength."""
        return self.reason
