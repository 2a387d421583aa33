"""How many tokens a round drafts, and what a round brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Round:
    """What one verify brought a request."""

    tokens: list[int]
    """Those that it added to the completion."""
    drafted: int
    accepted: int
    """Drafts that the sampler agreed with."""
    draft_seconds: float
    seconds: float
    """Of the whole round, drafting included, whoever shared it."""
    sequences: int = 1
    """How many requests shared it."""
    ended: float = 0.0
    """When its tokens were there, by time.perf_counter."""


class DraftLength(Protocol):
    """Decides how many tokens a round drafts."""

    def choose(self, room: int) -> int:
        """The most drafts of the next round, at most `room`."""

    def observe(self, finished: Round) -> None:
        """Learns what the round brought and cost."""

    def report(self) -> str:
        """What was decided and why, in a few words for the statistics."""


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
