"""Seconds that runs of the graphs take on this machine: a table of timed shapes, interpolated in between."""

from __future__ import annotations

from bisect import bisect_left

_RISE = 0.1  # of the way up to a longer time; a busy machine only ever adds, so a shorter one counts at once
_MOST_ENTRIES = 64  # numbers of rows for each number of sequences, and of those; the least recently used go first
_SIMILAR = 3  # numbers of sequences whose times count for another one
_ROW_SHARE = 0.15  # of a run of one row, for each row more, before two numbers of rows were timed
_DRAFT_SHARE = 0.1  # of a verify of one row, for a draft run before one was timed: low, so that it is tried
_PIECE_MEMORY = 0.9  # weight of a timed piece of a prompt, one piece later
_FIRST_PIECE = 32  # tokens of a piece before any was timed


def lowest(known: float, seconds: float) -> float:
    """The least time so far, which rises slowly while later ones are longer; `known` 0 for none."""
    return seconds if not known or seconds < known else known + _RISE * (seconds - known)


class RunCost:
    """Seconds of one graph's runs, by rows (tokens of all sequences together) and sequences."""

    def __init__(self) -> None:
        # By sequences and rows; 0 for the first run of as many sequences, which allocates.
        self._tables: dict[int, dict[int, float]] = {}

    def observe(self, rows: int, sequences: int, seconds: float) -> None:
        """Takes in a run."""
        table = self._tables[sequences] = self._tables.pop(sequences, {})  # the last one used
        table[rows] = lowest(table.pop(rows, 0.0), seconds) if table else 0.0
        for entries in (table, self._tables):
            if len(entries) > _MOST_ENTRIES:
                del entries[next(iter(entries))]

    def timed(self, rows: int, sequences: int) -> bool:
        """Whether runs of that shape were timed."""
        return self._tables.get(sequences, {}).get(rows, 0.0) > 0

    def most_rows(self, sequences: int) -> int:
        """The most rows of as many sequences that were timed; 0 for none."""
        return max((rows for rows, seconds in self._tables.get(sequences, {}).items() if seconds), default=0)

    def seconds(self, sequences: int, more: int) -> list[float]:
        """Of runs with 0 to `more` rows beyond one for each of `sequences` sequences; empty before any was timed.

        Numbers of rows that were not timed with as many sequences have their time with the most similar number.
        """
        points = self._points(sequences)
        if not points:
            return []
        rows = [point[0] for point in points]
        return [_interpolated(points, rows, sequences + i) for i in range(more + 1)]

    @property
    def row(self) -> float:
        """Seconds that a row more takes: the mean slope over all numbers of rows that were timed."""
        points = self._points(1)
        return max(0.0, _slope(points[0], points[-1])) if points else 0.0

    def _points(self, sequences: int) -> list[tuple[int, float]]:
        """Rows and seconds in order of rows. Fewer rows never take longer."""
        found: dict[int, float] = {}
        timed = [others for others, table in self._tables.items() if any(table.values())]
        for others in sorted(timed, key=lambda others: abs(others - sequences))[:_SIMILAR]:
            for rows, seconds in self._tables[others].items():
                if seconds:
                    found.setdefault(rows, seconds)
        points = sorted(found.items())
        for i in range(len(points) - 2, -1, -1):
            if points[i][1] > points[i + 1][1]:
                points[i] = points[i][0], points[i + 1][1]
        if len(points) == 1:
            rows, seconds = points[0]
            points.append((rows + 1, seconds * (1 + _ROW_SHARE / (1 + _ROW_SHARE * (rows - 1)))))
        return points


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


def _interpolated(points: list[tuple[int, float]], rows: list[int], x: int) -> float:
    """The value at `x`; level before the first point, and as steep as the mean or more behind the last one."""
    above = bisect_left(rows, x)
    if not above:
        return points[0][1]
    if above == len(points):
        return points[-1][1] + (x - rows[-1]) * max(_slope(points[0], points[-1]), _slope(*points[-2:]))
    return points[above - 1][1] + (x - rows[above - 1]) * _slope(points[above - 1], points[above])


class Costs:
    """Seconds of verifies, draft runs and pieces of prompts, of a model on a machine. Requests share them."""

    def __init__(self) -> None:
        self.verify = RunCost()
        """With all that a round does beside draft runs."""
        self.draft = RunCost()
        self.between = 0.0
        """Seconds from a round's end to the next one's start."""
        self._pieces = [0.0] * 5  # decayed sums over pieces, each by its relative error: see prefill_tokens

    def round_seconds(self, sequences: int, drafts: int) -> list[float]:
        """Of rounds with 0 to `drafts` drafts in all, without the draft runs; empty before any was timed."""
        return [seconds + self.between for seconds in self.verify.seconds(sequences, drafts)]

    def draft_seconds(self, sequences: int) -> list[float]:
        """Of a draft run of 0, 1, .. `sequences` sequences, one row each."""
        if not self.draft.seconds(1, 0):
            return [0.0] + [_DRAFT_SHARE * sum(self.verify.seconds(1, 0))] * sequences
        return [0.0] + [self.draft.seconds(n, 0)[0] for n in range(1, sequences + 1)]

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
