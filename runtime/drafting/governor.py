"""How many tokens each request of a batch drafts: as many as make the batch as a whole fastest.

Other choices are tried now and then, as far as a budget allows. Where rounds are so short that deciding takes a good
part of one, a decision stands for many of them.
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
_KNOWN_PLAIN = 16  # the first of these, where drafts were timed before
_TRIAL_SHARE = 0.0075  # of the tokens, that trials of other choices may cost
_KNOWN_SHARE = 0.0025  # the same, where drafts were timed before there was a request
_DECIDING_SHARE = 0.005  # of the time, that decisions may take, and offers
_MOST_HELD = 96  # rounds for which one stands
# Rounds without offers, as n-grams may turn up: at first, and twice as many each time that none did; those without
# drafts, which n-grams would help most, at most half as many.
_FIRST_PAUSE, _MOST_PAUSE = 16, 64
_RECENT = 8  # rounds whose idle times count
_LEAST_LOSS = 0.1  # tokens of each request that a trial counts for
_FIRST_BUDGET, _MOST_BUDGET = 2.0, 16.0  # tokens that trials may cost at first, and at once
_FIRST_SECONDS = 2e-3  # that the first drafts of all take longer: code and memory that no run has touched yet
_SEEN = 4  # plain rounds before these, where that is more than a small part of a round


class Governor:
    """One for a model: requests come and go, what is known of the machine stays."""

    def __init__(self, costs: Costs | None = None) -> None:
        """`costs`: what is known of the machine."""
        self.costs = costs or Costs()
        self.prices = Prices(0.0, 0.0)
        """Of drafts, as of the last round."""
        known = self.costs.knows_drafts  # drafts were timed before there was a request
        self._budget = 0.0 if known else _FIRST_BUDGET  # of which the first drafts take most otherwise
        self._trial_share = _KNOWN_SHARE if known else _TRIAL_SHARE
        self._seen = 0  # rounds so far
        self._begun = known  # whether drafts were chosen ever
        self._speculative = 0  # rounds in which drafting paid, since the last one without
        self._first_plain = _KNOWN_PLAIN if known else 1  # of them before the next one without, in a close case
        self._turn = 0  # trials so far
        self._requests = 0  # that the last decision is for
        self.standing: list[int] = []
        """The most drafts of each request while the last decision stands, which trials are no part of."""
        self._held = 0  # rounds for which it still stands, if no n-grams turn up
        self._pause = self._silent = 0  # rounds without offers between the last two, and still to come
        self._open = False  # whether there was anything to decide
        # Of the last round, or of one that was timed at loading; when it ended, and what this round's choice took.
        self._seconds = sum(self.costs.verify.seconds(1, 0)[:1]) if known else 0.0
        self._ended = self._deciding = 0.0
        self._idle: deque[float] = deque(maxlen=_RECENT)  # seconds from round to round without those
        self._least_idle = 0.0  # of the recent ones
        self._trial_speed = self._trial_tokens = 0.0  # without this round's trial, and what it should bring and cost

    def holds(self, requests: int) -> bool:
        """Whether the last decision stands for one round more, which does not have to offer anything then.

        It was for as many requests, what it costs is known, and rounds are so short that offers and a decision take a
        good part of one.
        """
        if not self._silent or requests != self._requests:
            return False
        self._silent -= 1
        self._held = max(0, self._held - 1)
        self._speculative += any(self.standing)
        return True

    def choose(self, offers: Sequence[Offer], offering: float = 0.0) -> list[int]:
        """The most drafts of each request in the next round; the offers took `offering` seconds."""
        started = time.perf_counter()
        if self._silent or len(offers) != self._requests:  # a new request, or tokens that a constraint forces
            self._held = self._pause = 0
        if self._held and self._fits(offers):
            lengths = self.standing
            self._held -= 1
            self._speculative += any(lengths)
        else:
            self._requests, self._silent = len(offers), 0
            lengths, decided = self._choose(offers)
            self.standing = decided or lengths
            stands = decided and self._may_stand(offers)
            self._held = min(self._affordable(offering + time.perf_counter() - started), _MOST_HELD) if stands else 0
        if self._held:
            most = _MOST_PAUSE if any(self.standing) else _MOST_PAUSE // 2
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), most)
            self._silent = min(self._pause, self._affordable(offering))
        self._deciding = offering + time.perf_counter() - started
        return lengths

    def _affordable(self, seconds: float) -> int:
        """In how many rounds one may take so long for offers or a decision."""
        return int(seconds / (_DECIDING_SHARE * self._seconds)) if self._seconds else 0

    def _fits(self, offers: Sequence[Offer]) -> bool:
        """Whether the last decision is one for these offers too: no n-grams turned up."""
        return self._open and all(
            not offer.tokens and not offer.least and length <= len(offer.chances)
            for offer, length in zip(offers, self.standing, strict=True)
        )

    def _may_stand(self, offers: Sequence[Offer]) -> bool:
        drafts = sum(self.standing)
        by_head = all(offer.tokens is None or not length for offer, length in zip(offers, self.standing, strict=True))
        # Before it is known what lies between rounds, plain ones look cheaper than they are.
        return by_head and (drafts > 0 or len(self._idle) > 0) and self.costs.timed(len(offers), drafts)

    def _choose(self, offers: Sequence[Offer]) -> tuple[list[int], list[int]]:
        """The next round's drafts, and those that were decided on; none where too little is known for that."""
        least = [offer.least for offer in offers]
        spare = sum(len(offer.chances) for offer in offers) - sum(least)
        self._open = spare > 0
        if not spare:
            return least, least
        alone = len(offers) == 1 and offers[0].tokens is None
        verify = self.costs.round_seconds(len(offers), sum(least) + spare, alone)
        if not verify:
            return least, []
        if not any(least) and not self.costs.verify.timed(len(offers), len(offers)):
            return least, []  # no guess of what drafts are held against is good enough
        if not self._begins(offers, verify[0] + self._least_idle):
            return least, []
        search = Search(offers, [seconds + self._least_idle for seconds in verify], self.costs)
        best = search.best(self.costs.verify.most_rows)
        self._set_prices(offers, max(search.plain, best.speed))
        lengths = search.lengths(best)
        if best.speed <= _MARGIN * search.plain:
            self._speculative = 0
            others = [lengths] if lengths != least else []
            return self._trial(least, [*others, *search.longer(least, self._turn)], search), least
        every = min(self._first_plain, _PLAIN_EVERY) if best.speed < _CLOSE * search.plain else _PLAIN_EVERY
        due = self._speculative >= every
        tried = self._trial(lengths, [least] if due else search.longer(lengths, self._turn), search)
        if tried == least:
            self._speculative, self._first_plain = 0, 2 * self._first_plain
        else:
            self._speculative += 1
        return tried, lengths

    def observe(self, tokens: int, started: float, ended: float, busy: float) -> None:
        """Takes in that a round brought `tokens` tokens from `started` to `ended`, `busy` seconds of it in graphs."""
        if self._ended:
            self._idle.append(max(0.0, ended - self._ended - busy - self._deciding))
            self._least_idle = min(self._idle)
        self._seconds, self._ended, self._deciding = ended - started, ended, 0.0
        self._seen += 1
        if self._trial_speed:  # it may have cost more than was guessed
            self._budget -= max(0.0, self._trial_speed * (busy + self._least_idle) - self._trial_tokens)
            self._trial_speed = 0.0
        self._budget = min(self._budget + self._trial_share * tokens * self._open, _MOST_BUDGET)

    def _begins(self, offers: Sequence[Offer], plain: float) -> bool:
        """Whether drafts were chosen before or may be now, where a round without any takes `plain` seconds.

        The first ones run what never ran, which takes as long as many rounds of a small model. So they wait until
        trials may cost that much, and for a request of which the drafter has seen nearly all tokens.
        """
        if self._begun or self.costs.knows_drafts:
            return True
        rounds = min(_FIRST_SECONDS / plain, _MOST_BUDGET)
        missing = rounds + self.costs.catch_up * min(offer.behind for offer in offers) / plain - self._budget
        if missing > 0 and not any(offer.least for offer in offers):
            self._silent = int(missing / (self._trial_share * len(offers)))
        if missing <= 0 and (rounds <= _LEAST_LOSS or self._seen >= _SEEN):
            self._begun = True
            self._budget -= rounds
        return self._begun

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
