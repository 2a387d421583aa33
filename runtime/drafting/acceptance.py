"""How often drafts are right, by source and position: of one request, starting from what all of a model's were."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

_OWN_MEMORY, _COMMON_MEMORY = 0.98, 0.998  # weight of an observed draft, one observation later
_IDLE_MEMORY = 0.995  # the same, one round of all requests without one later: what was bad for long is tried again
# Drafts that the rates of all requests count for; texts differ more in how much they repeat themselves.
_COMMON_HEAD, _COMMON_NGRAM = 24.0, 4.0
_FIRST_WEIGHT = 2.0  # drafts that the rate before anything is known counts for
_CHAIN_WEIGHT = 6.0  # drafts that the rate at the position before counts for
_HEAD_PRIOR = 0.7  # of the MTP head's drafts
_NGRAM_PRIORS = (0.3, 0.45, 0.6, 0.75, 0.85)  # of those of n-grams, by kind of match
_KINDS = (0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 4)  # by length of the match; longer ones are of the last


class Rates:
    """Shares of drafts that were right, by position in the chain, or by kind of match."""

    def __init__(self, kinds: int, memory: float) -> None:
        self._memory = memory
        self._right = [0.0] * kinds
        self._tried = [0.0] * kinds

    def observe(self, kind: int, right: bool) -> None:
        """Takes in a draft whose predecessors were right."""
        self._right[kind] = self._memory * self._right[kind] + right
        self._tried[kind] = self._memory * self._tried[kind] + 1

    def forget(self, first: int, memory: float) -> None:
        """Takes in a round without drafts of kind `first` and those after it."""
        for kind in range(first, len(self._tried)):
            self._right[kind] *= memory
            self._tried[kind] *= memory

    def known(self, prior: Sequence[float], weight: float) -> list[float]:
        """The rates, where `prior` counts as much as `weight` drafts."""
        return [
            (right + weight * rate) / (tried + weight)
            for right, tried, rate in zip(self._right, self._tried, prior, strict=True)
        ]

    def chained(self, prior: float) -> list[float]:
        """The rates, where the first one starts from `prior`, and each other from the rate before it."""
        found, weight = [], _FIRST_WEIGHT
        for right, tried in zip(self._right, self._tried, strict=True):
            prior = (right + weight * prior) / (tried + weight)
            weight = _CHAIN_WEIGHT
            found.append(prior)
        return found


class Acceptance:
    """Rates of MTP head and block drafter by a draft's position in the round, of n-grams by the length of the match."""

    def __init__(self, longest: int, common: Acceptance | None = None) -> None:
        """`longest`: most drafts of a round. `common`: that of all requests, which this one starts from and adds to."""
        memory = _COMMON_MEMORY if common is None else _OWN_MEMORY
        self._heads = Rates(longest, memory), Rates(longest, memory)  # of the MTP head, and of the block drafter
        self._ngram = Rates(len(_NGRAM_PRIORS), memory)
        self._common = common

    def head(self, *, block: bool) -> list[float]:
        """How often each draft of the head, or of the block drafter, is right if those before it are."""
        if self._common is None:
            return self._heads[block].chained(_HEAD_PRIOR)
        return self._heads[block].known(self._common.head(block=block), _COMMON_HEAD)

    @property
    def ngram(self) -> list[float]:
        """How often a draft is right, by the kind of the match before it."""
        return self._ngram.known(_NGRAM_PRIORS if self._common is None else self._common.ngram, _COMMON_NGRAM)

    def head_chances(self, most: int, *, block: bool = False) -> list[float]:
        """How likely each of `most` drafts of the head, or the block drafter, and all those before it are right."""
        return [*accumulate(self.head(block=block)[:most], mul)]

    def ngram_chances(self, match: int, most: int) -> list[float]:
        """How likely each of `most` drafts after a match of `match` tokens, and all those before it, are right.

        Each right draft makes the match longer.
        """
        known = self.ngram
        return [*accumulate((known[_kind(length)] for length in range(match, match + most)), mul)]

    def observe_head(self, tested: int, right: int, requests: int, *, block: bool = False) -> None:
        """Takes in a round of `tested` drafts of the head or the block drafter, of which the first `right` were right.

        `requests`: those that shared the round, each with drafts of its own.
        """
        if self._common is not None:
            self._common.observe_head(tested, right, requests, block=block)
        for i in range(tested):
            self._heads[block].observe(i, i < right)
        for drafter, first in ((block, tested), (not block, 0)):
            self._heads[drafter].forget(first, _IDLE_MEMORY ** (1 / requests))

    def observe_ngram(self, match: int, tested: int, right: int) -> None:
        """Takes in a round of `tested` drafts after a match of `match` tokens: the first `right` were right."""
        if self._common is not None:
            self._common.observe_ngram(match, tested, right)
        for i in range(tested):
            self._ngram.observe(_kind(match + i), i < right)


def _kind(match: int) -> int:
    return _KINDS[min(match, len(_KINDS) - 1)]
