"""The choice of drafts that makes the next round of a batch fastest.

A draft's row brings its request the chance that the draft is right, and those before it are: a number that falls from
draft to draft. So the best choice of n rows are the n most likely drafts, and one look over all n finds the fastest,
wherever the costs have their steps. A draft step is shared by all requests that draft so far; that is why each greatest
depth is looked at apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trigraph.runtime.drafting.costs import Costs
from trigraph.runtime.drafting.draft_length import Offer


class _Item(NamedTuple):
    """A draft that could be verified; sorted, the most likely ones come first, those of a request in order."""

    unlikely: float
    number: int
    request: int
    head: bool


class Best(NamedTuple):
    """The fastest choice that was found."""

    speed: float
    depth: int
    """The most drafts of the head for any request."""
    items: int
    """How many of the items up to that depth are taken."""


class Search:
    """The speeds of all choices for one round."""

    def __init__(self, offers: Sequence[Offer], verify: Sequence[float], costs: Costs) -> None:
        """`verify`: seconds of a round without draft runs, by rows beyond one for each request."""
        self._offers, self._verify = offers, verify
        self._rows = sum(offer.least for offer in offers)
        self._tokens = float(len(offers))
        self._items: list[_Item] = []
        depth = 0
        for i, offer in enumerate(offers):
            self._tokens += sum(offer.chances[: offer.least])
            head = offer.tokens is None
            for number in range(offer.least, len(offer.chances)):
                self._items.append(_Item(-offer.chances[number], number, i, head))
            if head:
                depth = max(depth, len(offer.chances))
        self._items.sort()
        self._heads = [sum(offer.tokens is None and offer.least > n for offer in offers) for n in range(depth)]
        self._draft = costs.draft_seconds(sum(offer.tokens is None for offer in offers))
        self._catch_up = costs.catch_up
        self._drafting = sum(self._draft[n] for n in self._heads)
        self.plain = self._tokens / (self._drafting + verify[self._rows])
        """Tokens a second without any draft that need not be."""
        self.speed = self.plain
        """Tokens a second of the fastest choice that was found."""

    def best(self, timed_rows: int) -> Best:
        """The fastest choice of those with any drafts, and at most a draft each more than the rows that were timed."""
        most = max(self._rows, timed_rows)  # beyond one for each request
        found = Best(0.0, 0, 0)
        alone = len(self._offers) == 1
        for depth in range(len(self._heads) if alone else 0, len(self._heads) + 1):
            found = max(found, self._walk(depth, most))
            if depth >= found.depth + 3:
                break
        self.speed = max(self.plain, found.speed)
        return found

    def lengths(self, best: Best) -> list[int]:
        """The drafts of each request in that choice."""
        lengths = [offer.least for offer in self._offers]
        for item in self._upto(best.depth)[: best.items]:
            lengths[item.request] += 1
        return lengths

    def tokens(self, lengths: Sequence[int]) -> float:
        """Tokens that this choice is likely to bring."""
        return sum(1 + sum(o.chances[:length]) for o, length in zip(self._offers, lengths, strict=True))

    def longer(self, lengths: Sequence[int], turn: int) -> list[list[int]]:
        """Choices with a draft of the head more than that one: for one of the requests in turn, and for all."""
        offers = enumerate(self._offers)
        able = [i for i, offer in offers if offer.tokens is None and len(offer.chances) > lengths[i]]
        chosen = [able] if len(able) < 2 else [[able[turn % len(able)]], able]
        return [[length + (i in more) for i, length in enumerate(lengths)] for more in chosen if more]

    def loss(self, lengths: Sequence[int], trial: Sequence[int]) -> float:
        """Tokens that are likely to be lost with the second choice in place of the first."""
        seconds = 0.0
        for sign, choice in ((-1, lengths), (1, trial)):
            heads = [length if o.tokens is None else 0 for o, length in zip(self._offers, choice, strict=True)]
            runs = sum(self._draft[sum(length > n for length in heads)] for n in range(max(heads)))
            behind = sum(o.behind for o, length in zip(self._offers, heads, strict=True) if length)
            seconds += sign * (self._verify[sum(choice)] + runs + self._catch_up * behind)
        return self.speed * seconds - self.tokens(trial) + self.tokens(lengths)

    def _upto(self, depth: int) -> list[_Item]:
        return [item for item in self._items if not item.head or item.number < depth]

    def _walk(self, depth: int, most: int) -> Best:
        """The fastest choice where the head makes at most `depth` drafts for any request."""
        verify, draft, catch_up, heads = self._verify, self._draft, self._catch_up, self._heads.copy()
        rows, tokens, drafting = self._rows, self._tokens, self._drafting
        best, taken = 0.0, 0
        for i, (unlikely, number, _, head) in enumerate(self._upto(depth), 1):
            rows += 1
            if rows > most:
                break
            tokens -= unlikely
            if head:
                n = heads[number] = heads[number] + 1
                # The head computes kept drafts again, from their true hidden states.
                drafting += draft[n] - draft[n - 1] - catch_up * unlikely
            speed = tokens / (drafting + verify[rows])
            if speed > best:
                best, taken = speed, i
        return Best(best, depth, taken)
