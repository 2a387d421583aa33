"""The drafts of one request: of MTP head, block drafter or n-grams, whichever is worth most; what came of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Candidates, DraftCost
from trigraph.runtime.drafting.ngram import Match, NgramIndex
from trigraph.runtime.requests.stats import Round

OFF = "off as asked"
"""The report of a request that does not draft by its own wish."""
_MEMORY, _PARKED = 0.9, 0.2  # of the share of rounds that drafted; under it, drafting is said to be parked
_RETRY = 64  # rounds after which another drafter of the model is tried again
_LONG = 16  # rounds after which it is no chance that nothing was drafted


class Head(NamedTuple):
    """How a drafter of the model works: by default as an MTP head, whose drafts take a run each."""

    block: int = 0
    """Rows of the one run that makes all drafts of a block drafter; 0 for an MTP head."""
    drafts: int = sys.maxsize
    """Most of a round."""
    longest: int = sys.maxsize
    """Most tokens of a text that it drafts after: a block must fit into the context."""

    def most(self, length: int, room: int) -> int:
        """Drafts that it makes after so many tokens, of at most `room`."""
        return min(room, self.drafts) if length <= self.longest else 0


MTP_HEAD = Head()


class DraftLength:
    """Offers drafts for the governor to choose from, and learns how often they are right."""

    def __init__(
        self,
        common: Acceptance,
        longest: int,
        *,
        heads: Sequence[Head] = (MTP_HEAD,),
        ngrams: bool = False,
        fixed: int | None = None,
        note: str = "",
    ) -> None:
        """`common`: rates of all requests. `longest`: most drafts of a round. `heads`, `ngrams`: the sources.

        `fixed` takes as many drafts in every round, if there are any. `note` ends the report; where `fixed` is 0, it is
        all of it.
        """
        self._acceptance = Acceptance(longest, common)
        self._longest, self._heads, self._fixed, self._note = longest, heads, fixed, note
        self._offered = dict.fromkeys(heads, -_RETRY)  # the round in which each was last offered
        self._index = NgramIndex() if ngrams else None
        self._match = Match([], 0)
        self._rounds = self._drafting = 0
        self._asked = self._by_ngrams = 0  # drafts
        self._drafted = self._accepted = 0
        self._behind = 0  # tokens since the head drafted last
        self._share = 1.0  # of the latest rounds, that drafted

    def candidates(self, tokens: Sequence[int], token: int, room: int, cost: DraftCost) -> Candidates:
        """At most `room` drafts for the next round, where `tokens` and then `token` are known."""
        most = min(room, self._longest if self._fixed is None else self._fixed)
        head, chances, worth = self._best_head(len(tokens), most, cost)
        drafts: list[int] | None = None
        if self._index is not None and most:
            self._match = self._index.find(tokens, token, most)
            if self._match.drafts:
                others = self._acceptance.ngram_chances(self._match.length, most)
                if _worth(others, cost.row) >= worth:
                    chances, drafts = others, self._match.drafts
            elif not self._heads:
                drafts = []
        return Candidates(chances, drafts, 0 if self._fixed is None else len(chances), self._behind, block=head.block)

    def observe(self, candidates: Candidates, asked: int, finished: Round) -> None:
        """Learns what became of the candidates when at most `asked` of them were wanted."""
        if self._fixed == 0:
            return
        self._rounds += 1
        self._drafting += asked > 0
        self._share = _MEMORY * self._share + (1 - _MEMORY) * (asked > 0)
        self._asked += asked
        self._drafted += finished.drafted
        self._accepted += finished.accepted
        self._behind += len(finished.tokens)
        if candidates.tokens is not None:
            self._by_ngrams += asked
        else:
            if asked and not candidates.block:
                self._behind = finished.accepted
            # A draft too unlikely to be verified has cost its step all the same, and counts as a wrong one.
            attempts = min(finished.drafted + 1, asked)
            tested = min(attempts, finished.accepted + 1)
            self._acceptance.observe_head(tested, finished.accepted, finished.sequences, block=candidates.block > 0)
        if match := self._match.drafts:
            # These are known to be right or wrong whether they were verified or not.
            right = 0
            while right < min(len(match), len(finished.tokens)) and match[right] == finished.tokens[right]:
                right += 1
            tested = min(right + 1, len(match), len(finished.tokens))
            self._acceptance.observe_ngram(self._match.length, tested, right)
            self._match = Match([], 0)

    def _best_head(self, length: int, most: int, cost: DraftCost) -> tuple[Head, list[float], float]:
        """The drafter to ask, its chances, and the tokens that they bring beyond their cost.

        That is the one that brings most, or one that was not asked for long and so may have become better. The MTP head
        must be cheap to try: it first sees all tokens since its last draft.
        """
        offers = []
        for head in self._heads:
            chances = self._acceptance.head_chances(head.most(length, most), block=head.block > 0)
            if head.block:
                worth = max(0.0, _worth(chances, cost.row) - cost.block)
            else:
                worth = max(0.0, _worth(chances, cost.row + cost.draft) - cost.draft * self._behind / _RETRY)
            long = self._rounds - self._offered[head] >= _RETRY and (head.block or self._behind <= _LONG)
            offers.append((len(self._heads) > 1 and long and bool(chances), worth, chances, head))
        if not offers:
            return MTP_HEAD, [], 0.0
        _, worth, chances, best = max(offers, key=lambda offer: offer[:2])
        self._offered[best] = self._rounds
        return best, chances, worth

    def report(self) -> str:
        """What was drafted and why, in a few words for the statistics."""
        if self._fixed == 0:
            return self._note
        if self._fixed is not None and self._heads:
            return f"on, {self._fixed} drafts a round as asked"
        if not self._drafting:
            reason = ": it would not pay" if self._rounds >= _LONG else ""
            return f"on, nothing drafted yet{reason}{self._note}"
        plain = self._rounds - self._drafting
        text = f"on, {self._asked / self._drafting:.1f} drafts a round"
        if self._share < _PARKED:
            text = f"parked: drafting does not pay, {self._accepted} of {self._drafted} drafts accepted"
        if self._by_ngrams:
            share = self._by_ngrams / self._asked
            text += ", all by n-grams" if share == 1 else f", {share:.0%} by n-grams"
        return text + (f", {plain} of {self._rounds} rounds plain" if plain else "") + self._note


def no_drafts(reason: str) -> DraftLength:
    """What a request has that does not draft, for a stated reason."""
    return DraftLength(Acceptance(1), 1, heads=(), fixed=0, note=reason)


def _worth(chances: list[float], cost: float) -> float:
    """Tokens that drafts bring beyond the cost of each."""
    return sum(chance - cost for chance in chances if chance > cost)
