"""The queue in front of the scheduler. Everything here may be called from any thread, and returns at once."""

from __future__ import annotations

import heapq
import threading
import time
from bisect import insort
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
        self._lock = threading.Lock()
        self._queue: list[Request] = []
        self._numbers = count()
        self._cancelled: list[Request] = []
        self._deadlines: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first(self) -> Request | None:
        """The one to be served next."""
        return self._queue[0] if self._queue else None

    def enter(self, request: Request) -> None:
        """Adds a new request. Raises QueueFullError."""
        with self._lock:
            if len(self._queue) >= self._limit:
                raise QueueFullError(f"{len(self._queue)} requests wait already; try again later, or raise max_waiting")
            number = next(self._numbers)
            request.rank = (-request.priority, number)
            if request.deadline is not None:
                heapq.heappush(self._deadlines, (request.deadline, number, request))
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

    def cancel(self, request: Request) -> None:
        """Has the request ended before the next round."""
        with self._lock:
            self._cancelled.append(request)

    def ended(self) -> list[tuple[Request, str]]:
        """Requests, with state or without, that were cancelled or whose time is over, and which of the two."""
        with self._lock:
            ended = [(request, "cancelled") for request in self._cancelled]
            self._cancelled.clear()
            while self._deadlines and (self._deadlines[0][0] <= time.monotonic() or self._deadlines[0][2].done):
                ended.append((heapq.heappop(self._deadlines)[2], "timeout"))
            return ended


def _rank(request: Request) -> tuple[int, int]:
    return request.rank
