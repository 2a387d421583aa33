"""What threads wait with for something that another one does."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


class Bell:
    """Wakes the threads that wait. Each waits at a lock of its own: an interrupt at any moment leaves none held."""

    def __init__(self) -> None:
        self._sleepers: deque[threading.Lock] = deque()

    def wait(self, happened: Callable[[], bool], deadline: float | None = None) -> None:
        """Returns when `happened`, which is looked at whenever the bell rings, or at the deadline (time.monotonic)."""
        while not happened():
            sleeper = threading.Lock()
            sleeper.acquire()
            self._sleepers.append(sleeper)
            if happened():  # between the last look and the line above
                return
            seconds = -1 if deadline is None else deadline - time.monotonic()
            if deadline is not None and seconds <= 0:
                return
            sleeper.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))

    def ring(self) -> None:
        """Wakes all that wait. For one thread at a time."""
        for _ in range(len(self._sleepers)):
            self._sleepers.popleft().release()
