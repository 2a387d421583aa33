"""The queue in front of the scheduler."""

from __future__ import annotations

import threading
from bisect import insort
from itertools import count
from operator import attrgetter

from trigraph.models.errors import TrigraphError
from trigraph.runtime.requests.request import Request


class QueueFullError(TrigraphError):
    """A request is refused, as too many wait already."""


class Waiting:
    """Requests without state, by priority, then in the order in which they came.

    Its methods may be called from any thread and return at once.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: how many may wait."""
        self._limit = limit
        self._lock = threading.RLock()  # a finalizer may submit a request in the middle of these methods
        self._queue: list[Request] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._queue)

    def enter(self, request: Request, places: int) -> None:
        """Adds a new request, where the next round has `places` for those that are here. Raises QueueFullError."""
        with self._lock:
            if (count := len(self._queue) - max(0, places)) >= self._limit:
                raise QueueFullError(f"{count} requests wait already; try again later, or raise max_waiting")
            request.rank = (-request.priority, next(self._numbers))
            insort(self._queue, request, key=attrgetter("rank"))

    def add(self, request: Request) -> None:
        """Adds a request that has given its state back, at its old place."""
        with self._lock:
            insort(self._queue, request, key=attrgetter("rank"))

    def discard(self, request: Request) -> None:
        """Takes a request out, if it is there."""
        with self._lock:
            if request in self._queue:
                self._queue.remove(request)

    @property
    def all(self) -> tuple[Request, ...]:
        """All of them, in that order."""
        with self._lock:
            return tuple(self._queue)
