"""What runs of the graphs cost on this machine, as far as they were timed, and what others are likely to.

A run's time depends on its rows (tokens, of all sequences together) and on its sequences. Where a shape was timed, its
least recent time counts, for a busy machine only ever adds. Where it was not, a fit guesses:

    seconds = a + b rows + c sequences + d (1 - (1 - r)^rows),  none of them negative,

with r the share of the experts that each row is routed to: the last term is the share that any of the rows is routed
to, and so must be read. The guess is corrected by how far the fit is off at the nearest timed numbers of rows.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from operator import itemgetter, mul

_RECENT = 8  # times of a shape that count
_SHAPES = 256  # shapes that are kept; the oldest go first
_NOTICED, _REFITTED = 0.02, 0.25  # relative changes of a shape's time that are worth new guesses, and a new fit
_STALE = 1024  # runs after which a time that looks too long is doubted
_ROW_COST, _PRIOR_WEIGHT = 0.15, 0.05  # of a run of one row, for each row more, before anything else is known
_DRAFT_SHARE = 0.1  # of a verify of one row, for a draft run that was never timed; hopeful, so that it is tried
_PIECE_MEMORY = 0.9  # how much a timed piece of a prompt counts one piece later
_FIRST_PIECE = 32  # tokens of a piece before any was timed


class _Times:
    """Recent seconds of one shape."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=_RECENT)
        self.least = 0.0
        self.noticed = self.fitted = 0.0  # `least` as the guesses and the fit know it
        self.last = 0  # number of the run that was timed last


class RunCost:
    """Seconds of one graph's runs. `routed`: the share of the experts that a row is routed to, 0 without experts."""

    def __init__(self, routed: float = 0.0) -> None:
        self._dense = 1.0 - routed
        self._times: dict[tuple[int, int], _Times] = {}
        self._runs = 0
        self._coefficients = [0.0, 0.0, 0.0, 0.0]
        self._fitted = False
        self._guesses: dict[int, list[float]] = {}
        self.most_rows = 0
        """The most rows that were timed."""

    def observe(self, rows: int, sequences: int, seconds: float) -> None:
        """Takes in a run. The first of each shape does not count: it allocates."""
        self._runs += 1
        times = self._times.get((rows, sequences))
        if times is None:
            if len(self._times) == _SHAPES:
                del self._times[next(iter(self._times))]
            self._times[rows, sequences] = _Times()
            return
        times.recent.append(seconds)
        times.least = min(times.recent)
        times.last = self._runs
        self.most_rows = max(self.most_rows, rows)
        if abs(times.least - times.noticed) > _NOTICED * times.noticed:
            if abs(times.least - times.fitted) > _REFITTED * times.fitted:
                times.fitted = times.least
                self._fitted = False
            times.noticed = times.least
            self._guesses.clear()

    def seconds(self, sequences: int, most: int) -> list[float]:
        """Of runs of `sequences` sequences: item i is for i rows more than sequences, i up to `most` at least.

        Empty when no run was ever timed.
        """
        known = self._guesses.get(sequences)
        if known is None or len(known) <= most:
            known = self._guesses[sequences] = self._guess(sequences, most)
        return known

    def timed(self, rows: int, sequences: int) -> bool:
        """Whether that shape was."""
        times = self._times.get((rows, sequences))
        return times is not None and len(times.recent) > 0

    @property
    def row(self) -> float:
        """Seconds that a row more takes, by the fit."""
        self._fit()
        return self._coefficients[1]

    def _guess(self, sequences: int, most: int) -> list[float]:
        self._fit()
        if not self.most_rows:
            return []
        corrections: list[tuple[int, float]] = []
        found = []
        for rows in range(sequences, sequences + most + 1):
            times = self._times.get((rows, sequences))
            if times is not None and times.recent:
                found.append(self._known(times, rows, sequences))
            else:
                corrections = corrections or self._corrections(sequences)
                found.append(_between(corrections, rows) * self._fitted_seconds(rows, sequences))
        for i in range(most - 1, -1, -1):  # fewer rows never take longer
            if found[i] > found[i + 1]:
                found[i] = found[i + 1]
        return found

    def _known(self, times: _Times, rows: int, sequences: int) -> float:
        """Seconds of a shape that was timed; the fit's, where those are old and look too long."""
        if self._runs - times.last <= _STALE:
            return times.least
        return min(times.least, self._fitted_seconds(rows, sequences))

    def _corrections(self, sequences: int) -> list[tuple[int, float]]:
        """Numbers of rows that were timed, in order, and timed by fitted seconds there; of as many sequences first."""
        found: dict[int, tuple[int, float]] = {}
        for (rows, others), times in self._times.items():
            if times.recent:
                ratio = self._known(times, rows, others) / self._fitted_seconds(rows, others)
                candidate = (abs(others - sequences), ratio)
                found[rows] = min(found.get(rows, candidate), candidate)
        return [(rows, found[rows][1]) for rows in sorted(found)]

    def _fitted_seconds(self, rows: int, sequences: int) -> float:
        a, b, c, d = self._coefficients
        return a + b * rows + c * sequences + d * (1.0 - self._dense**rows)

    def _fit(self) -> None:
        """Least squares of relative errors."""
        if self._fitted:
            return
        self._fitted = True
        shapes = [(rows, sequences, times.least) for (rows, sequences), times in self._times.items() if times.recent]
        if not shapes:
            return
        rows, _, seconds = min(shapes)
        plain = seconds / (1 + _ROW_COST * (rows - 1))
        points = [(rows, sequences, seconds, 1.0) for rows, sequences, seconds in shapes]
        points += [(n, 1, plain * (1 + _ROW_COST * (n - 1)), _PRIOR_WEIGHT) for n in (1, 8)]
        terms = [(1.0, rows, sequences, 1.0 - self._dense**rows) for rows, sequences, _, _ in points]
        weighted = [[term * point[3] / point[2] for term in row] for row, point in zip(terms, points, strict=True)]
        self._coefficients = non_negative(weighted, [point[3] for point in points])


def _between(points: list[tuple[int, float]], x: int) -> float:
    """The value at `x` of a line through the points, level before the first and after the last."""
    above = bisect_left(points, x, key=itemgetter(0))
    if not 0 < above < len(points):
        return points[min(above, len(points) - 1)][1]
    (left, low), (right, high) = points[above - 1], points[above]
    return low + (x - left) / (right - left) * (high - low)


def non_negative(terms: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """The non-negative least-squares solution of `terms` [points, n] x = `targets` [points].

    The active-set algorithm of Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23. In plain Python, as
    NumPy's solver takes milliseconds for its first call and a round of a small model for each further one.
    """
    columns = list(zip(*terms, strict=True))
    scale = [max(math.sqrt(_dot(column, column)), 1e-300) for column in columns]
    columns = [tuple(x / size for x in column) for column, size in zip(columns, scale, strict=True)]
    products = [[_dot(one, other) for other in columns] for one in columns]
    wanted = [_dot(column, targets) for column in columns]
    found, free = [0.0] * len(wanted), list[int]()
    for _ in range(4 * len(wanted)):
        slopes = [
            0.0 if i in free else target - _dot(row, found)
            for i, (row, target) in enumerate(zip(products, wanted, strict=True))
        ]
        best = max(range(len(slopes)), key=slopes.__getitem__)
        if slopes[best] <= 1e-9 * max(map(abs, wanted)):
            break
        free.append(best)
        while free:
            solved = _solution([[products[i][j] for j in free] for i in free], [wanted[i] for i in free])
            if min(solved) > 0:
                found = [solved[free.index(i)] if i in free else 0.0 for i in range(len(found))]
                break
            steps = [found[i] / (found[i] - s) for i, s in zip(free, solved, strict=True) if s <= 0 and found[i] > s]
            step = min(steps, default=0.0)
            for i, s in zip(free, solved, strict=True):
                found[i] += step * (s - found[i])
            free = [i for i in free if found[i] > 1e-12]
    return [x / size for x, size in zip(found, scale, strict=True)]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    total: float = sum(map(mul, a, b))
    return total


def _solution(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a positive semi-definite system with ones on its diagonal; of many, about the smallest one."""
    n = len(right)
    rows = [[x + (i == j) * 1e-12 for j, x in enumerate(row)] + [right[i]] for i, row in enumerate(matrix)]
    for i in range(n):
        for below in rows[i + 1 :]:
            factor = below[i] / rows[i][i]
            for j in range(i, n + 1):
                below[j] -= factor * rows[i][j]
    found = [0.0] * n
    for i in range(n - 1, -1, -1):
        found[i] = (rows[i][n] - _dot(rows[i][i + 1 : n], found[i + 1 :])) / rows[i][i]
    return found


class Costs:
    """Of verifies, draft runs and pieces of prompts. They belong to a model on a machine: requests share them."""

    def __init__(self, routed: float = 0.0) -> None:
        """`routed`: the share of the experts that a token is routed to, 0 without experts."""
        self.verify = RunCost(routed)
        self.draft = RunCost()
        self._pieces = [0.0] * 5  # decayed sums over pieces, each by its relative error: see _piece_line

    def draft_seconds(self, sequences: int) -> list[float]:
        """Of a draft run of 0, 1, .. `sequences` sequences, one row each."""
        if not self.draft.most_rows:
            plain = self.verify.seconds(1, 0)
            return [0.0] + [_DRAFT_SHARE * plain[0] if plain else 0.0] * sequences
        # A token to catch up with is timed more often than none, and a run with none takes no longer.
        return [0.0] + [self.draft.seconds(n, 1)[0] for n in range(1, sequences + 1)]

    @property
    def catch_up(self) -> float:
        """Seconds that a draft run takes longer for each token that the head must be shown first."""
        if self.draft.most_rows:
            return self.draft.row
        plain = self.verify.seconds(1, 0)
        return _DRAFT_SHARE * plain[0] if plain else 0.0

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Takes in the run of a piece of a prompt."""
        one, size = 1.0 / seconds, tokens / seconds
        for i, term in enumerate((one * one, one * size, size * size, one, size)):
            self._pieces[i] = _PIECE_MEMORY * self._pieces[i] + term

    def prefill_tokens(self, seconds: float) -> int:
        """The most tokens of a prompt whose run takes no longer than `seconds`; at least 1."""
        ones, mixed, sizes, one, size = self._pieces
        if not sizes:
            return _FIRST_PIECE
        spread = ones * sizes - mixed * mixed
        fixed = (one * sizes - size * mixed) / spread if spread > 1e-9 * ones * sizes else 0.0
        token = (size * ones - one * mixed) / spread if fixed > 0 else 0.0
        if fixed <= 0 or token <= 0:
            fixed, token = 0.0, size / sizes  # a line through the origin
        return max(1, int((seconds - fixed) / token))
