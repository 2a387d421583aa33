"""Offers drafts of the MTP head or of n-grams, by how often either was right; the governor takes what pays."""

from __future__ import annotations

from collections.abc import Sequence

from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.draft_length import Offer, Prices, Round
from trigraph.runtime.drafting.ngram import Match, NgramIndex

_MEMORY, _PARKED = 0.9, 0.2  # of the share of rounds that drafted; under it, drafting is said to be parked
_LONG = 16  # rounds after which it is no chance that nothing was drafted


class AdaptiveLength:
    """Drafts of one request; see DraftLength."""

    def __init__(
        self,
        common: Acceptance,
        longest: int,
        *,
        head: bool = True,
        ngrams: bool = False,
        fixed: int | None = None,
        note: str = "",
    ) -> None:
        """`common`: what is known of all requests. `longest`: most drafts of a round. `head`, `ngrams`: who drafts.

        `fixed` takes so many drafts in every round, if there are any. `note` is what the statistics add.
        """
        self._acceptance = Acceptance(longest, common)
        self._longest, self._head, self._fixed, self._note = longest, head, fixed, note
        self._index = NgramIndex() if ngrams else None
        self._match = Match([], 0)
        self._rounds = self._drafting = 0
        self._asked = self._by_ngrams = 0  # drafts
        self._drafted = self._accepted = 0
        self._behind = 0  # tokens since the head drafted last
        self._share = 1.0  # of the latest rounds, that drafted

    def offer(self, tokens: Sequence[int], token: int, room: int, prices: Prices) -> Offer:
        """See DraftLength."""
        most = min(room, self._longest if self._fixed is None else self._fixed)
        chances = self._acceptance.head_chances(most) if self._head else []
        drafts: list[int] | None = None
        if self._index is not None and most:
            self._match = self._index.find(tokens, token, most)
            drafts = self._match.drafts
            if drafts:
                others = self._acceptance.ngram_chances(self._match.length, most)
                price = prices.row + prices.draft
                if _worth(others, prices.row) >= _worth(chances, price):
                    chances = others
                else:
                    drafts = None
            elif self._head:
                drafts = None
        return Offer(0 if self._fixed is None else len(chances), chances, drafts, self._behind)

    def observe(self, offer: Offer, asked: int, finished: Round) -> None:
        """See DraftLength."""
        self._rounds += 1
        self._drafting += asked > 0
        self._share = _MEMORY * self._share + (1 - _MEMORY) * (asked > 0)
        self._asked += asked
        self._drafted += finished.drafted
        self._accepted += finished.accepted
        self._behind += len(finished.tokens)
        if offer.tokens is not None:
            self._by_ngrams += asked
        elif asked:
            self._behind = 0
            # A draft too unlikely to be verified has cost its step all the same, and counts as a wrong one.
            attempts = min(finished.drafted + 1, asked)
            self._acceptance.observe_head(min(attempts, finished.accepted + 1), finished.accepted)
        if match := self._match.drafts:
            # These are known to be right or wrong whether they were verified or not.
            right = 0
            while right < min(len(match), len(finished.tokens)) and match[right] == finished.tokens[right]:
                right += 1
            tested = min(right + 1, len(match), len(finished.tokens))
            self._acceptance.observe_ngram(self._match.length, tested, right)
            self._match = Match([], 0)

    def report(self) -> str:
        """See DraftLength."""
        if not self._drafting:
            reason = ": it would not pay" if self._rounds >= _LONG else ""
            return f"on, nothing drafted yet{reason}{self._note}"
        plain = self._rounds - self._drafting
        text = f"on, {self._asked / self._drafting:.1f} drafts a round"
        if self._share < _PARKED:
            text = f"parked: drafting does not pay at {self._accepted / max(1, self._drafted):.0%} accepted"
        if self._by_ngrams:
            text += f", {self._by_ngrams / self._asked:.0%} of them by n-grams"
        return text + (f", {plain} of {self._rounds} rounds plain" if plain else "") + self._note


def _worth(chances: list[float], price: float) -> float:
    """Tokens that drafts bring beyond what each of them costs."""
    return sum(chance - price for chance in chances if chance > price)
