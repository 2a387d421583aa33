"""The trunk's hidden states that a sequence may still need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class HiddenRows:
    """Hidden states of consecutive positions up to the newest; position -1 is a row of zeros."""

    def __init__(self, width: int) -> None:
        self._rows = np.zeros((16, width), np.float32)
        self.start = -1  # position of the oldest row
        self._count = 1

    def append(self, rows: NDArray[np.float32]) -> None:
        """Copies `rows` [n, hidden] of the next n positions."""
        wanted = self._count + len(rows)
        if wanted > len(self._rows):
            self._rows = np.concatenate([self._rows[: self._count], np.empty((wanted, rows.shape[1]), np.float32)])
        self._rows[self._count : wanted] = rows
        self._count = wanted

    def restart(self, position: int, row: NDArray[np.float32]) -> None:
        """Forgets everything but `row` [hidden], the hidden state of `position`."""
        self._rows[0] = row
        self.start, self._count = position, 1

    def restore(self, position: int, rows: NDArray[np.float32]) -> None:
        """Forgets everything but `rows` [n, hidden], the first of them of `position`."""
        self.restart(position, rows[0])
        self.append(rows[1:])

    def keep(self, start: int, stop: int) -> None:
        """Forgets the positions outside `start` .. `stop` - 1."""
        if start > self.start:
            # The two ranges may overlap: NumPy copes with that.
            self._rows[: stop - start] = self.span(start, stop)
        self.start, self._count = start, stop - start

    def span(self, start: int, stop: int) -> NDArray[np.float32]:
        """The rows of positions `start` .. `stop` - 1, as a view [stop - start, hidden]."""
        return self._rows[start - self.start : stop - self.start]

    def copy(self) -> HiddenRows:
        """An independent copy."""
        other = HiddenRows(self._rows.shape[1])
        other._rows, other.start, other._count = self._rows.copy(), self.start, self._count
        return other
