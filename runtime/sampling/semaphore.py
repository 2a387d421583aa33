"""A limit on how many do something at a time."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager

from trigraph.models.errors import TrigraphError

_MOST_WAITING = 32


class BusyError(TrigraphError):
    """Too many wait already."""


class Semaphore:
    """Lets some in at a time, the smallest first."""

    def __init__(self, slots: int) -> None:
        """`slots`: how many may be in at a time."""
        self._slots, self._count = slots, 0
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int]] = []

    @contextmanager
    def entered(self, size: int) -> Iterator[None]:
        """Waits until there is a place. Raises BusyError when too many wait already."""
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                raise BusyError("too many grammars and JSON schemas wait to be compiled already; try again later")
            self._count += 1
            mine = (size, self._count)
            insort(self._waiting, mine)
            try:
                self._changed.wait_for(lambda: self._slots and self._waiting[0] == mine)
                self._slots -= 1
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._slots += 1
                self._changed.notify_all()
