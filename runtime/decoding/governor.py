"""How many tokens each request of a batch drafts: as many as make the batch as a whole fastest.

A draft's row brings its request the chance that the draft is right, and those before it are: a number that falls from
draft to draft. So the best choice of n rows are the n most likely drafts, and one look over all n finds the fastest,
wherever the costs have their steps. A draft step is shared by all requests that draft so far; that is why each greatest
depth is looked at apart.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from trigraph.runtime.decoding.costs import Costs
from trigraph.runtime.decoding.draft_length import Offer, Prices

_MARGIN = 1.02  # how much faster drafting must look
_PLAIN_EVERY = 128  # rounds with drafts between two without, which show whether the machine has changed
_CLOSE = 1.25  # where drafting looks no faster than so much, the first ones without come after 1, 2, 4, .. rounds
_KNOWN_PLAIN = 16  # the first of these, where drafts were timed before there was a request
_TRIAL_SHARE = 0.0075  # of the tokens, that trials of drafts that do not seem to pay may cost
_DECIDING_SHARE, _MOST_PLAIN = 0.01, 32  # of a round, that decisions may take; most plain rounds that one holds
_MOST_HELD = 2 * _MOST_PLAIN  # rounds with drafts; plain ones are fewer, as n-grams may turn up
_RECENT = 8  # rounds whose idle times count
_LEAST_LOSS = 0.1  # tokens of each request that a trial counts for
_FIRST_BUDGET, _MOST_BUDGET = 2.0, 16.0  # tokens that trials may cost at first, and at once
_FIRST_SECONDS = 2e-3  # that the first drafts of all take longer: code and memory that no run has touched yet
_SEEN = 4  # plain rounds before these, where that is more than a small part of a round


class _Item(NamedTuple):
    """A draft that could be verified; sorted, the most likely ones come first, those of a request in order."""

    unlikely: float
    number: int
    request: int
    head: bool


class _Best(NamedTuple):
    """The fastest choice that was found."""

    speed: float
    depth: int
    """The most drafts of the head for any request."""
    items: int
    """How many of the items up to that depth are taken."""


class Governor:
    """One for a model: requests come and go, what is known of the machine stays."""

    def __init__(self, costs: Costs | None = None) -> None:
        """`costs`: what is known of the machine."""
        self.costs = costs or Costs()
        self.prices = Prices(0.0, 0.0)
        """Of drafts, as of the last round."""
        known = self.costs.knows_drafts  # drafts were timed before there was a request
        self._budget = 0.0 if known else _FIRST_BUDGET  # of which the first drafts take most otherwise
        self._seen = 0  # rounds so far
        self._begun = known  # whether drafts were chosen ever
        self._speculative = 0  # rounds in which drafting paid, since the last one without
        self._first_plain = _KNOWN_PLAIN if known else 1  # of them before the next one without, in a close case
        self._turn = 0  # trials so far
        self._requests = 0  # that the last decision is for
        self._rounds_held = 0  # rounds for which it still stands
        self._may_hold = 0  # rounds for which the last decision may stand; none if it was a trial
        # Of the last round, or of one that was timed at loading; when it ended, and what this round's choice took.
        self._seconds = sum(self.costs.verify.seconds(1, 0)[:1]) if known else 0.0
        self._ended = self._deciding = 0.0
        self._choosing = 0.0  # seconds that the last choice took
        self._idle: deque[float] = deque(maxlen=_RECENT)  # seconds from round to round without those
        self._least_idle = 0.0  # of the recent ones
        self._trial_speed = self._trial_tokens = 0.0  # without this round's trial, and what it should bring and cost

    def holds(self, requests: int) -> bool:
        """Whether the last choice stands for one round more, which does not have to offer anything then.

        It was for as many requests, what it costs is known, and rounds are so short that offers and a choice take a
        good part of one.
        """
        if not self._rounds_held or requests != self._requests:
            return False
        self._rounds_held -= 1
        self._speculative += self._speculative > 0
        return True

    def choose(self, offers: Sequence[Offer], offering: float = 0.0) -> list[int]:
        """The most drafts of each request in the next round; the offers took `offering` seconds."""
        started = time.perf_counter()
        self._may_hold = 0
        self._requests, self._rounds_held = len(offers), 0
        lengths = self._choose(offers)
        by_head = all(offer.tokens is None or not length for offer, length in zip(offers, lengths, strict=True))
        # Before it is known what lies between rounds, plain ones look cheaper than they are.
        known = self._idle and self.costs.timed(len(offers), sum(lengths))
        self._deciding = self._choosing = offering + time.perf_counter() - started
        if known and by_head and self._may_hold and self._seconds:
            plain = min(int(self._deciding / (_DECIDING_SHARE * self._seconds)), _MOST_PLAIN)
            self._rounds_held = min(2 * plain if any(lengths) else plain, self._may_hold)
        return lengths

    def _choose(self, offers: Sequence[Offer]) -> list[int]:
        lengths = [offer.least for offer in offers]
        spare = sum(len(offer.chances) for offer in offers) - sum(lengths)
        if not spare:
            self._may_hold = _MOST_HELD
            return lengths
        alone = len(offers) == 1 and offers[0].tokens is None
        verify = self.costs.round_seconds(len(offers), sum(lengths) + spare, alone)
        if not verify:
            return lengths
        if not any(lengths) and not self.costs.verify.timed(len(offers), len(offers)):
            return lengths  # no guess of what drafts are held against is good enough
        if not self._begins(offers, verify[0] + self._least_idle):
            return lengths
        search = _Search(offers, [seconds + self._least_idle for seconds in verify], self.costs)
        best = search.best(self.costs.verify.most_rows)
        self._set_prices(offers, max(search.plain, best.speed))
        pays = best.speed > _MARGIN * search.plain
        if not pays:
            self._speculative = 0
            return self._trial(lengths, search.lengths(best), search)
        every = min(self._first_plain, _PLAIN_EVERY) if best.speed < _CLOSE * search.plain else _PLAIN_EVERY
        if self._speculative >= every:
            self._speculative, self._first_plain = 0, 2 * self._first_plain
            return lengths
        self._speculative += 1
        chosen = self._trial(search.lengths(best), None, search)
        self._may_hold = min(self._may_hold, every - self._speculative)
        return chosen

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
        self._budget = min(self._budget + _TRIAL_SHARE * tokens, _MOST_BUDGET)

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
            self._rounds_held = int(missing / (_TRIAL_SHARE * len(offers)))
        if missing <= 0 and (rounds <= _LEAST_LOSS or self._seen >= _SEEN):
            self._begun = True
            self._budget -= rounds
        return self._begun

    def _trial(self, lengths: list[int], others: list[int] | None, search: _Search) -> list[int]:
        """Within the budget, where a draft costs least: one more for a request in turn, one for each, or `others`."""
        # The guess of a loss may be too hopeful, and a trial and the round after it need choices of their own.
        least = _LEAST_LOSS * len(lengths) + 2 * self._choosing * search.speed
        trials = [others] if least <= self._budget and others not in (None, lengths) else []
        if least <= self._budget and (longer := search.longer(lengths)):
            for more in ([longer[self._turn % len(longer)]], longer):
                trials.append([length + (i in more) for i, length in enumerate(lengths)])
        found = [(search.loss(lengths, trial), sum(trial) - sum(lengths), trial) for trial in trials]
        for lost, _, trial in sorted(found, key=lambda one: one[0] / one[1]):
            loss = max(lost, least)
            if loss <= self._budget:
                self._turn += 1
                self._budget -= loss
                self._trial_speed, self._trial_tokens = search.speed, search.tokens(trial) + loss
                return trial
        self._may_hold = _MOST_HELD
        return lengths

    def _set_prices(self, offers: Sequence[Offer], speed: float) -> None:
        heads = max(1, sum(offer.tokens is None for offer in offers))
        draft = self.costs.draft_seconds(heads)[heads] / heads
        self.prices = Prices(self.costs.verify.row * speed, draft * speed)


class _Search:
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

    def best(self, timed_rows: int) -> _Best:
        """The fastest choice of those with any drafts, and at most a draft each more than the rows that were timed."""
        most = max(self._rows, timed_rows)  # beyond one for each request
        found = _Best(0.0, 0, 0)
        alone = len(self._offers) == 1
        for depth in range(len(self._heads) if alone else 0, len(self._heads) + 1):
            found = max(found, self._walk(depth, most))
            if depth >= found.depth + 3:
                break
        self.speed = max(self.plain, found.speed)
        return found

    def lengths(self, best: _Best) -> list[int]:
        """The drafts of each request in that choice."""
        lengths = [offer.least for offer in self._offers]
        for item in self._upto(best.depth)[: best.items]:
            lengths[item.request] += 1
        return lengths

    def tokens(self, lengths: Sequence[int]) -> float:
        """Tokens that this choice is likely to bring."""
        return sum(1 + sum(o.chances[:length]) for o, length in zip(self._offers, lengths, strict=True))

    def longer(self, lengths: Sequence[int]) -> list[int]:
        """The requests for which the head could make a draft more than in that choice."""
        offers = enumerate(self._offers)
        return [i for i, offer in offers if offer.tokens is None and len(offer.chances) > lengths[i]]

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

    def _walk(self, depth: int, most: int) -> _Best:
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
        return _Best(best, depth, taken)
