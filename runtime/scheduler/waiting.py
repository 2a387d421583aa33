"""The queue in front of the scheduler. Everything here may be called from any thread, and returns at once."""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Iterable
from itertools import count

from trigraph.models.errors import TrigraphError
from trigraph.runtime.scheduler.request import Request


class QueueFullError(TrigraphError):
    """A request is refused, as too many wait already."""


class Waiting:
    """Requests without state, in the order in which they will be served: by priority, then first come, first served."""

    def __init__(self, limit: int) -> None:
        """`limit`: how many may wait."""
        self._limit = limit
        self._lock = threading.RLock()  # the collector may end an iteration in the midst of these methods
        self._queue: list[Request] = []
        self._numbers = count()
        self._cancelled: list[tuple[Request, str | None]] = []

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first(self) -> Request | None:
        """The one to be served next."""
        return self._queue[0] if self._queue else None

    def enter(self, request: Request, places: int) -> None:
        """Adds a new request, where the next round has `places` for those that are here. Raises QueueFullError."""
        with self._lock:
            if (count := len(self._queue) - max(0, places)) >= self._limit:
                raise QueueFullError(f"{count} requests wait already; try again later, or raise max_waiting")
            request.rank = (-request.priority, next(self._numbers))
            insort(self._queue, request, key=_rank)

    def add(self, request: Request) -> None:
        """Adds a request that has given its state back, at its old place."""
        with self._lock:
            insort(self._queue, request, key=_rank)

    def discard(self, request: Request) -> None:
        """Takes a request out, if it is there."""
        with self._lock:
            if request in self._queue:
                self._queue.remove(request)

    def cancel(self, request: Request, reason: str | None = "cancelled") -> None:
        """Has the request ended before the next round; None: what is there is no completion."""
        with self._lock:
            self._cancelled.append((request, reason))

    def ended(self, active: Iterable[Request]) -> list[tuple[Request, str | None]]:
        """Requests that were cancelled, and those here or in `active` whose time is over; and which of the two."""
        with self._lock:
            now = time.monotonic()
            ended, self._cancelled = self._cancelled, []
            for request in (*self._queue, *active):
                if request.deadline is not None and request.deadline <= now:
                    ended.append((request, "timeout"))
            return ended


def _rank(request: Request) -> tuple[int, int]:
    return request.rank
