"""How deep to draft: measures what plain and speculative rounds cost and bring, and takes the faster way.

A round with n drafts brings 1 + a1 + a1 a2 + ... tokens, where ai is how often draft i is right when those before it
were. It costs n draft steps and a verify of n + 1 tokens. Plain decoding is n = 0: when nothing is faster, speculation
is parked and tried again after ever longer pauses.
"""

from __future__ import annotations

from collections import deque

from trigraph.runtime.decoding.speculation import Round

_RECENT = 8  # times of a step that count; the least of them, for a busy machine or a page fault only ever adds
_MEMORY = 0.97  # how much an observed draft counts one observation later
_PRIOR_RATE, _PRIOR_WEIGHT = 0.6, 2.0  # of acceptance, before anything is known
_ROW_COST = 0.15  # of a plain step, for one row more in a verify that was never timed; hopeful, so that it is tried
_MARGIN = 1.02  # how much faster speculation must look
_PLAIN_EVERY = 128  # speculative rounds between two plain ones, which show whether the machine has changed
_FIRST_PAUSE, _LAST_PAUSE, _LONGER = 16, 256, 4  # plain rounds before speculation is tried again


class Costs:
    """Measured seconds of steps. They belong to a model on a machine: requests share them."""

    def __init__(self) -> None:
        self._verifies: dict[int, deque[float]] = {}
        self._drafts: deque[float] = deque(maxlen=_RECENT)
        self._seen: set[int] = set()

    @property
    def deepest(self) -> int:
        """The most tokens in a verify that was timed; 0 when none was."""
        return max(self._verifies, default=0)

    def observe(self, finished: Round, attempts: int) -> None:
        """Takes in a round with so many draft steps. The first of each shape does not count: it allocates."""
        rows = finished.drafted + 1
        if rows not in self._seen:
            self._seen.add(rows)
            return
        seconds = finished.seconds - finished.draft_seconds
        self._verifies.setdefault(rows, deque(maxlen=_RECENT)).append(seconds)
        if attempts:
            self._drafts.append(finished.draft_seconds / attempts)

    @property
    def draft(self) -> float | None:
        """Seconds of a draft step; None before one was timed."""
        return min(self._drafts, default=None)

    def verify(self, rows: int) -> float | None:
        """Seconds of a verify of `rows` tokens, timed or guessed from the nearest one that was."""
        if not self._verifies:
            return None
        nearest = min(self._verifies, key=lambda known: (abs(known - rows), known))
        known = min(self._verifies[nearest])
        step = known / (1 + _ROW_COST * (nearest - 1))
        return known + _ROW_COST * step * (rows - nearest)


class Governor:
    """Chooses the depth of each round of one request."""

    def __init__(self, costs: Costs, deepest: int) -> None:
        """`deepest` is the most drafts that a round may have."""
        self._costs = costs
        self._deepest = deepest
        self._right = [0.0] * deepest
        self._tried = [0.0] * deepest
        self._depths: list[int] = []
        self._parked = False
        self._pause = _FIRST_PAUSE
        self._resting = 0  # plain rounds left before the next try
        self._trying = 0  # rounds of a try left
        self._speculative = 0  # rounds since the last plain one

    def choose(self, room: int) -> int:
        """See DraftLength."""
        depth = min(self._wanted(), room)
        self._depths.append(depth)
        return depth

    def observe(self, finished: Round) -> None:
        """See DraftLength."""
        # A draft too unlikely to be verified has cost its step all the same, and counts as a wrong one.
        attempts = min(finished.drafted + 1, self._depths[-1])
        self._costs.observe(finished, attempts)
        for i in range(min(attempts, finished.accepted + 1)):
            self._right[i] = _MEMORY * self._right[i] + (i < finished.accepted)
            self._tried[i] = _MEMORY * self._tried[i] + 1

    def report(self) -> str:
        """See DraftLength."""
        speculative = [depth for depth in self._depths if depth]
        if not speculative:
            return "on, not tried yet"
        mean = sum(speculative) / len(speculative)
        parked = len(self._depths) - len(speculative)
        text = f"on, {mean:.1f} drafts a round"
        if self._parked:
            text = f"parked: drafting does not pay at {self._rate(0):.0%} accepted"
        return text + (f", {parked} of {len(self._depths)} rounds plain" if parked else "")

    def _wanted(self) -> int:
        if self._costs.verify(1) is None or self._costs.draft is None:
            # Two plain and two speculative rounds, of which the first ones warm up, give both ways a time.
            return 0 if self._costs.verify(1) is None else 1
        if self._resting:
            self._resting -= 1
            self._trying = 0 if self._resting else 2
            return 0
        best = max(range(min(self._deepest, self._costs.deepest) + 1), key=self._speed)
        if best and self._speed(best) > _MARGIN * self._speed(0):
            self._parked, self._pause, self._trying = False, _FIRST_PAUSE, 0
            self._speculative += 1
            if self._speculative % _PLAIN_EVERY == 0:
                return 0
            return best
        if self._trying:
            self._trying -= 1
            return 1
        self._parked, self._resting = True, self._pause
        self._pause = min(_LONGER * self._pause, _LAST_PAUSE)
        return 0

    def _rate(self, draft: int) -> float:
        """How often draft number `draft` is right when those before it were."""
        # A draft never tried is like the one before it.
        prior = _PRIOR_RATE if draft == 0 else self._rate(draft - 1)
        return (self._right[draft] + prior * _PRIOR_WEIGHT) / (self._tried[draft] + _PRIOR_WEIGHT)

    def _speed(self, depth: int) -> float:
        """Tokens a second at `depth` drafts a round."""
        tokens = chain = 1.0
        for draft in range(depth):
            chain *= self._rate(draft)
            tokens += chain
        return tokens / ((self._costs.draft or 0.0) * depth + (self._costs.verify(depth + 1) or 1.0))
