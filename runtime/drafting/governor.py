"""How many tokens each request of a batch drafts: as many as make the batch as a whole fastest.

Other choices are tried now and then, as far as a budget allows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from trigraph.runtime.drafting.costs import Costs
from trigraph.runtime.drafting.draft_length import Offer, Prices
from trigraph.runtime.drafting.draft_search import Search

_MARGIN = 1.02  # how much faster drafting must look
_PLAIN_EVERY = 128  # rounds with drafts between two without, which show whether the machine has changed
_CLOSE = 1.25  # where drafting looks no faster than so much, the first ones without come after 1, 2, 4, .. rounds
_TRIAL_SHARE = 0.0075  # of the tokens, that trials of other choices may cost
_RECENT = 8  # rounds whose idle times count
_LEAST_LOSS = 0.1  # tokens of each request that a trial counts for
_FIRST_BUDGET, _MOST_BUDGET = 2.0, 16.0  # tokens that trials may cost at first, and at once


class Governor:
    """One for a model: requests come and go, what is known of the machine stays."""

    def __init__(self, costs: Costs | None = None) -> None:
        """`costs`: what is known of the machine."""
        self.costs = costs or Costs()
        self.prices = Prices(0.0, 0.0)
        """Of drafts, as of the last round."""
        self._budget = _FIRST_BUDGET  # of which the first drafts take most
        self._speculative = 0  # rounds in which drafting paid, since the last one without
        self._first_plain = 1  # of them before the next one without, in a close case
        self._turn = 0  # trials so far
        self._open = False  # whether there was anything to decide
        self._ended = self._deciding = 0.0  # when the last round ended, and what this one's choice took
        self._idle: deque[float] = deque(maxlen=_RECENT)  # seconds from round to round without those
        self._least_idle = 0.0  # of the recent ones
        self._trial_speed = self._trial_tokens = 0.0  # without this round's trial, and what it should bring and cost

    def choose(self, offers: Sequence[Offer]) -> list[int]:
        """The most drafts of each request in the next round."""
        started = time.perf_counter()
        lengths = self._choose(offers)
        self._deciding = time.perf_counter() - started
        return lengths

    def _choose(self, offers: Sequence[Offer]) -> list[int]:
        least = [offer.least for offer in offers]
        spare = sum(len(offer.chances) for offer in offers) - sum(least)
        self._open = spare > 0
        if not spare:
            return least
        verify = self.costs.verify.seconds(len(offers), sum(least) + spare)
        if not verify:
            return least
        if not any(least) and not self.costs.verify.timed(len(offers), len(offers)):
            return least  # no guess of what drafts are held against is good enough
        search = Search(offers, [seconds + self._least_idle for seconds in verify], self.costs)
        best = search.best(self.costs.verify.most_rows)
        self._set_prices(offers, max(search.plain, best.speed))
        lengths = search.lengths(best)
        if best.speed <= _MARGIN * search.plain:
            self._speculative = 0
            others = [lengths] if lengths != least else []
            return self._trial(least, [*others, *search.longer(least, self._turn)], search)
        every = min(self._first_plain, _PLAIN_EVERY) if best.speed < _CLOSE * search.plain else _PLAIN_EVERY
        due = self._speculative >= every
        tried = self._trial(lengths, [least] if due else search.longer(lengths, self._turn), search)
        if tried == least:
            self._speculative, self._first_plain = 0, 2 * self._first_plain
        else:
            self._speculative += 1
        return tried

    def observe(self, tokens: int, started: float, ended: float, busy: float) -> None:
        """Takes in that a round brought `tokens` tokens from `started` to `ended`, `busy` seconds of it in graphs."""
        if self._ended:
            self._idle.append(max(0.0, ended - self._ended - busy - self._deciding))
            self._least_idle = min(self._idle)
        self._ended, self._deciding = ended, 0.0
        if self._trial_speed:  # it may have cost more than was guessed
            self._budget -= max(0.0, self._trial_speed * (busy + self._least_idle) - self._trial_tokens)
            self._trial_speed = 0.0
        self._budget = min(self._budget + _TRIAL_SHARE * tokens * self._open, _MOST_BUDGET)

    def _trial(self, lengths: list[int], others: list[list[int]], search: Search) -> list[int]:
        """Within the budget, the one of `others` where a draft more or less costs least; otherwise `lengths`."""
        least = _LEAST_LOSS * len(lengths)  # the guess of a loss may be too hopeful
        if least > self._budget:
            return lengths
        found = [(search.loss(lengths, trial), abs(sum(trial) - sum(lengths)), trial) for trial in others]
        for lost, _, trial in sorted(found, key=lambda one: one[0] / one[1]):
            loss = max(lost, least)
            if loss <= self._budget:
                self._turn += 1
                self._budget -= loss
                self._trial_speed, self._trial_tokens = search.speed, search.tokens(trial) + loss
                return trial
        return lengths

    def _set_prices(self, offers: Sequence[Offer], speed: float) -> None:
        heads = max(1, sum(offer.tokens is None for offer in offers))
        draft = self.costs.draft_seconds(heads)[heads] / heads
        self.prices = Prices(self.costs.verify.row * speed, draft * speed)
