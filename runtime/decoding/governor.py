"""The draft length that pays: measures what plain and speculative rounds cost and bring, and takes the faster way.

A round with n drafts brings 1 + a1 + a1 a2 + ... tokens, where ai is how often draft i is right when those before it
were. It costs n draft steps and a verify of n + 1 tokens. Plain decoding is n = 0: when nothing is faster, speculation
is parked, and tried again after ever longer pauses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from trigraph.runtime.decoding.draft_length import Round

_RECENT = 8  # times of a step that count; the least of them, for a busy machine or a page fault only ever adds
_MEMORY = 0.97  # how much an observed draft counts one observation later
_PRIOR_RATE, _PRIOR_WEIGHT = 0.6, 2.0  # of acceptance, before anything is known
_ROW_COST = 0.15  # of a plain step, for one row more in a verify that was never timed; hopeful, so that it is tried
_MARGIN = 1.02  # how much faster speculation must look
_PLAIN_EVERY = 128  # speculative rounds between two plain ones, which show whether the machine has changed
_FIRST_PAUSE, _LAST_PAUSE, _LONGER = 16, 256, 4  # plain rounds before speculation is tried again
_TRIES = 2  # rounds of one draft that such a try takes


class Shape(NamedTuple):
    """What the time of a verify depends on."""

    rows: int
    """Tokens of a sequence."""
    sequences: int = 1


class Costs:
    """Measured seconds of steps. They belong to a model on a machine: requests share them."""

    def __init__(self) -> None:
        self._verifies: dict[Shape, deque[float]] = {}
        self._drafts: deque[float] = deque(maxlen=_RECENT)
        self._seen: set[Shape] = set()

    def most_rows(self, sequences: int = 1) -> int:
        """The most rows of a verify of so many sequences that was timed; 0 when none was."""
        return max(self._timed(sequences), default=0)

    def observe(self, finished: Round, draft_steps: int) -> None:
        """Takes in a round with so many draft steps. The first of each shape does not count: it allocates."""
        shape = Shape(finished.drafted + 1, finished.sequences)
        if shape not in self._seen:
            self._seen.add(shape)
            return
        seconds = finished.seconds - finished.draft_seconds
        self._verifies.setdefault(shape, deque(maxlen=_RECENT)).append(seconds)
        if draft_steps:
            self._drafts.append(finished.draft_seconds / draft_steps)

    @property
    def draft(self) -> float | None:
        """Seconds of a draft step; None before one was timed."""
        return min(self._drafts, default=None)

    def verify(self, rows: int, sequences: int = 1) -> float | None:
        """Seconds of a verify, timed or guessed from the nearest one of as many sequences; None before one was."""
        timed = self._timed(sequences)
        if not timed:
            return None
        nearest = min(timed, key=lambda known: (abs(known - rows), known))
        known = min(self._verifies[Shape(nearest, sequences)])
        plain = known / (1 + _ROW_COST * (nearest - 1))
        return known + _ROW_COST * plain * (rows - nearest)

    def _timed(self, sequences: int) -> list[int]:
        return [shape.rows for shape in self._verifies if shape.sequences == sequences]


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


class Governor:
    """Chooses the draft length of each round of one request; see DraftLength.

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
