"""How many tokens a request may draft in a round, and what a round brought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

OFF = "off as asked"
"""The report of a request that does not draft by its own wish."""
_GUESSED_RATE = 0.6  # of drafts whose number is fixed


class Round(NamedTuple):
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


@dataclass
class Offer:
    """What a request could have verified beside its next token."""

    least: int = 0
    """Drafts that it takes at any price."""
    chances: list[float] = field(default_factory=list)
    """How likely each draft is right and all those before it are. It may take no more drafts than these."""
    tokens: list[int] | None = None
    """The drafts; None where the drafter is to make them."""
    behind: int = 0
    """Tokens that the drafter has not seen yet, beside the usual ones of a round."""
    forced: bool = False
    """Whether a constraint leaves no other tokens: nothing is to be learnt from them."""


class Prices(NamedTuple):
    """What drafts cost a round, in tokens that could be had in the same time."""

    row: float
    """A draft's row in the verify."""
    draft: float
    """A request's share of a draft step."""


class DraftLength(Protocol):
    """What one request may draft, and what came of it."""

    def offer(self, tokens: Sequence[int], token: int, room: int, prices: Prices) -> Offer:
        """For the next round, at most `room` drafts, where `tokens` and then `token` are known."""

    def observe(self, offer: Offer, asked: int, finished: Round) -> None:
        """Learns what became of an offer when at most `asked` drafts were wanted."""

    def report(self) -> str:
        """What was decided and why, in a few words for the statistics."""


@dataclass(frozen=True)
class FixedLength:
    """The same number of drafts in each round, for a stated reason."""

    drafts: int
    reason: str

    def offer(self, tokens: Sequence[int], token: int, room: int, prices: Prices) -> Offer:
        """See DraftLength."""
        least = min(self.drafts, room)
        return Offer(least, [_GUESSED_RATE ** (i + 1) for i in range(least)])

    def observe(self, offer: Offer, asked: int, finished: Round) -> None:
        """See DraftLength: nothing to learn."""

    def report(self) -> str:
        """See DraftLength."""
        return self.reason
