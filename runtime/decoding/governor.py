"""The draft length that pays: measures what plain and speculative rounds cost and bring, and takes the faster way.

A round with n drafts brings 1 + a1 + a1 a2 + ... tokens, where ai is how often draft i is right when those before it
were. It costs n draft steps and a verify of n + 1 tokens. Plain decoding is n = 0: when nothing is faster, speculation
is parked, and tried again after ever longer pauses.
"""

from __future__ import annotations

from dataclasses import dataclass

from trigraph.runtime.decoding.costs import Costs
from trigraph.runtime.decoding.draft_length import Round
from trigraph.runtime.decoding.running import Running

_MEMORY = 0.97  # how much an observed draft counts one observation later
_PRIOR_RATE, _PRIOR_WEIGHT = 0.6, 2.0  # of acceptance, before anything is known
_MARGIN = 1.02  # how much faster speculation must look
_PLAIN_EVERY = 128  # speculative rounds between two plain ones, which show whether the machine has changed
_FIRST_PAUSE, _LAST_PAUSE, _LONGER = 16, 256, 4  # plain rounds before speculation is tried again
_TRIES = 2  # rounds of one draft that such a try takes


@dataclass
class _Parked:
    """Speculation rests for so many plain rounds and is tried again then, in a few rounds of one draft."""

    pause: int
    tries: int = _TRIES

    def __post_init__(self) -> None:
        self.rest = self.pause

    def again(self) -> _Parked:
        """The next and longer pause, after tries that did not pay either."""
        return _Parked(min(_LONGER * self.pause, _LAST_PAUSE))


class AdaptiveLength:
    """The draft length that pays for one request; see DraftLength.

    It warms up until both ways of decoding have a time. From then on it speculates, with a plain round now and then, or
    is parked.
    """

    def __init__(self, costs: Costs, longest: int) -> None:
        """`longest` is the most drafts that a round may have."""
        self._costs = costs
        self._longest = longest
        self._right = [0.0] * longest
        self._tried = [0.0] * longest
        self._chosen: list[int] = []
        self._parked: _Parked | None = None
        self._speculative = 0  # rounds in which drafting paid

    def choose(self, room: int) -> int:
        """See DraftLength."""
        length = min(self._wanted(), room)
        self._chosen.append(length)
        return length

    def observe(self, finished: Round) -> None:
        """See DraftLength."""
        # A draft too unlikely to be verified has cost its step all the same, and counts as a wrong one.
        attempts = min(finished.drafted + 1, self._chosen[-1])
        self._costs.observe(finished, attempts)
        for i in range(min(attempts, finished.accepted + 1)):
            self._right[i] = _MEMORY * self._right[i] + (i < finished.accepted)
            self._tried[i] = _MEMORY * self._tried[i] + 1

    def report(self) -> str:
        """See DraftLength."""
        speculative = [length for length in self._chosen if length]
        if not speculative:
            return "on, not tried yet"
        mean = sum(speculative) / len(speculative)
        plain = len(self._chosen) - len(speculative)
        text = f"on, {mean:.1f} drafts a round"
        if self._parked:
            text = f"parked: drafting does not pay at {self._rate(0):.0%} accepted"
        return text + (f", {plain} of {len(self._chosen)} rounds plain" if plain else "")

    def _wanted(self) -> int:
        """The draft length of the next round, if there is room for it."""
        if self._costs.verify(1) is None or self._costs.draft is None:
            # Two plain and two speculative rounds, of which the first ones warm up, give both ways a time.
            return 0 if self._costs.verify(1) is None else 1
        parked = self._parked
        if parked is not None and parked.rest:
            parked.rest -= 1
            return 0
        best = max(range(min(self._longest, self._costs.most_rows()) + 1), key=self._speed)
        if best and self._speed(best) > _MARGIN * self._speed(0):
            self._parked = None
            self._speculative += 1
            return best if self._speculative % _PLAIN_EVERY else 0
        if parked is not None and parked.tries:
            parked.tries -= 1
            return 1
        self._parked = _Parked(_FIRST_PAUSE) if parked is None else parked.again()
        return 0

    def _rate(self, draft: int) -> float:
        """How often draft number `draft` is right when those before it were."""
        # A draft never tried is like the one before it.
        prior = _PRIOR_RATE if draft == 0 else self._rate(draft - 1)
        return (self._right[draft] + prior * _PRIOR_WEIGHT) / (self._tried[draft] + _PRIOR_WEIGHT)

    def _speed(self, length: int) -> float:
        """Tokens a second with rounds of `length` drafts."""
        tokens = chain = 1.0
        for draft in range(length):
            chain *= self._rate(draft)
            tokens += chain
        return tokens / ((self._costs.draft or 0.0) * length + (self._costs.verify(length + 1) or 1.0))


class Governor:
    """Chooses how many tokens each request of a batch drafts. One for a model: requests come and go."""

    def choose(self, running: list[Running], rooms: list[int]) -> list[int]:
        """The most drafts of each request in the next round; at most `rooms[i]`."""
        return [request.draft_length.choose(room) for request, room in zip(running, rooms, strict=True)]

    def observe(self, running: list[Running]) -> None:
        """Learns from the last round of each request."""
        for request in running:
            request.draft_length.observe(request.rounds[-1])
