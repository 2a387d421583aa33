"""Seconds that runs of the graphs take on this machine: a table of timed shapes, and guesses for others."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import sqrt

# Runs of a shape, of which the shortest counts: a busy machine only adds, and so do the allocations of the first run,
# and the capture of a graph on a GPU. One run is not enough.
_LATEST, _ENOUGH = 4, 2
_STALE = 1000  # runs of other sizes, after which the time of a size is forgotten
_HOPE = 0.8  # of a guess: low, so that what may be faster is tried
_FAR = 2  # times as many rows as were timed: for more than that, there is no guess
_MOST_ENTRIES = 64  # numbers of rows for each number of sequences, and of those; the least recently used go first
_SIMILAR = 3  # numbers of sequences whose times count for another one
_DRAFT_SHARE = 0.2  # of a verify of one row, for a draft run of one before it was timed: low, so that it is tried
_RUN_ROWS = 10  # rows that take as long as what a run takes besides, before two sizes were timed
_SHORTEST = 1e-6  # seconds of a run: the clock may tell none, and times are divided by each other
_SETTLED = 8  # runs of one shape in a row, after which a change of its time is one of the machine
_CHANGE = 1.15  # times as long, or as short: less is noise
_AGE = 4  # to the power of its latest runs: other runs, after which the time of a size is no longer fresh


class _Table:
    """Times of runs of as many sequences, by rows."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self._latest: dict[int, deque[float]] = {}  # the one used last stands behind all others
        self._last: dict[int, int] = {}  # number of the last run
        self._runs = 0

    def observe(self, rows: int, seconds: float) -> None:
        """Takes in a run."""
        latest = self._latest[rows] = self._latest.pop(rows, deque[float](maxlen=_LATEST))
        latest.append(seconds)
        if len(latest) >= _ENOUGH:
            self.seconds[rows] = min(latest)
        self._runs += 1
        self._last[rows] = self._runs
        oldest = next(iter(self._latest))
        if self._runs - self._last[oldest] > _STALE or len(self._latest) > _MOST_ENTRIES:
            del self._latest[oldest], self._last[oldest]
            self.seconds.pop(oldest, None)

    def fresh(self, rows: int) -> bool:
        """Whether a size was timed lately: the more often it was, the longer that lasts."""
        return rows in self.seconds and self._runs - self._last[rows] < _AGE ** len(self._latest[rows])

    def starts(self, rows: int) -> bool:
        """Whether a size was timed a few times only."""
        return len(self._latest[rows]) < _LATEST

    def scale(self, factor: float, spared: int) -> None:
        """Multiplies the times of all sizes but one."""
        for rows, latest in self._latest.items():
            if rows != spared:
                latest.extend([max(factor * seconds, _SHORTEST) for seconds in latest])
        self.seconds = {rows: min(self._latest[rows]) for rows in self.seconds}


class RunCost:
    """Seconds of a graph's runs, by rows (of all sequences) and sequences; all change with the speed of the machine."""

    def __init__(self, machine: list[dict[int, _Table]] | None = None) -> None:
        """`machine`: the tables of all graphs that run on it."""
        self._tables: dict[int, _Table] = {}  # by sequences
        self._machine = [] if machine is None else machine
        self._machine.append(self._tables)
        self._shape, self._streak, self._settled = (0, 0), 0, 0.0  # of the last run; runs in a row; seconds then

    def observe(self, rows: int, sequences: int, seconds: float) -> None:
        """Takes in a run."""
        seconds = max(seconds, _SHORTEST)
        before, change = self.timed(rows, sequences), 1.0
        table = self._tables.pop(sequences) if sequences in self._tables else _Table()
        self._tables[sequences] = table  # behind all others
        table.observe(rows, seconds)
        if len(self._tables) > _MOST_ENTRIES:
            del self._tables[next(iter(self._tables))]
        self._streak = self._streak + 1 if self._shape == (rows, sequences) else 1
        self._shape = rows, sequences
        if self._streak == _SETTLED:
            self._settled = table.seconds[rows]
        if self._streak > _SETTLED:
            change = table.seconds[rows] / self._settled
        elif rows == sequences and before and table.starts(rows):
            change = min(1.0, seconds / before)  # without drafts: the others were timed in a slow start, too
        if not 1 / _CHANGE < change < _CHANGE:
            self._settled = table.seconds[rows]
            for tables in self._machine:
                for other in tables.values():
                    other.scale(change, rows if other is table else 0)

    def timed(self, rows: int, sequences: int) -> float:
        """Seconds of runs of that shape, if such were timed lately; else 0."""
        return self._tables[sequences].seconds.get(rows, 0) if sequences in self._tables else 0

    def fresh(self, rows: int, sequences: int) -> bool:
        """Whether they were timed lately enough for others to be held against them."""
        return sequences in self._tables and self._tables[sequences].fresh(rows)

    def seconds(self, sequences: int, sizes: Iterable[int]) -> dict[int, float]:
        """Seconds of runs with these numbers of rows, which rise; without those far from all that were timed.

        What was not timed lately is guessed from other sizes and similar numbers of sequences, on the low side.
        """
        points, found = self._points(sequences), dict[int, float]()
        most, known = (_FAR * points[-1][0] if points else 0), 0.0  # of fewer rows
        for rows in takewhile(most.__ge__, sizes):
            found[rows] = _at(points, rows)
            if self.timed(rows, sequences):
                known = found[rows]
            else:
                found[rows] = max(known, _HOPE * found[rows])
        return found

    def line(self, sequences: int, guess: float) -> tuple[float, float]:
        """Seconds of a run without rows, and of each row: a line through all sizes; `guess`: of one row, before any."""
        points = self._points(sequences) or [(1, guess)]
        (fewest, seconds), (most, longer) = points[0], points[-1]
        row = max(0.0, longer - seconds) / (most - fewest) if most > fewest else seconds / (_RUN_ROWS + fewest)
        return max(0.0, seconds - row * fewest), row

    def _points(self, sequences: int) -> list[tuple[int, float]]:
        """Rows and seconds in order of rows, from the most similar number of sequences that each was timed with."""
        found: dict[int, float] = {}
        timed = [others for others, table in self._tables.items() if table.seconds]
        for others in sorted(timed, key=lambda others: abs(others - sequences))[:_SIMILAR]:
            found = self._tables[others].seconds | found
        return sorted(found.items())


def _at(points: Sequence[tuple[int, float]], rows: int) -> float:
    """Seconds on the lines between points; outside them, four times as many rows take twice as long."""
    above = bisect_left(points, (rows, 0.0))
    if above < len(points) and points[above][0] == rows:
        return points[above][1]
    if above in (0, len(points)):
        nearest, seconds = points[min(above, len(points) - 1)]
        return seconds * sqrt(rows / nearest)
    (fewer, shorter), (more, longer) = points[above - 1], points[above]
    return shorter + (longer - shorter) * (rows - fewer) / (more - fewer)


class Costs:
    """Seconds of verifies and draft runs, of a model on a machine. Requests share them."""

    def __init__(self) -> None:
        machine: list[dict[int, _Table]] = []
        self.verify = RunCost(machine)
        """With all that a round does beside draft runs."""
        self.draft = RunCost(machine)
        self.block = RunCost(machine)
        """Runs of a block drafter; `draft` are the MTP head's."""
        self._gaps = deque[float](maxlen=_LATEST)  # from a round's end to the next one's start

    def round_seconds(self, sequences: int, sizes: Iterable[int]) -> dict[int, float]:
        """Seconds of rounds that verify these numbers of rows, without draft runs, as far as they can be guessed."""
        gap = min(self._gaps, default=0.0)
        return {rows: seconds + gap for rows, seconds in self.verify.seconds(sequences, sizes).items()}

    def draft_seconds(self, sequences: int, *, block: bool = False) -> tuple[float, float]:
        """Seconds of a draft run of the MTP head, or of the block drafter, and of each of its rows."""
        return (self.block if block else self.draft).line(sequences, _DRAFT_SHARE * self.verify.seconds(1, [1])[1])

    def observe_gap(self, seconds: float) -> None:
        """Takes in the time between two rounds."""
        self._gaps.append(seconds)
