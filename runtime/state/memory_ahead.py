"""Memory for numbers of a pool that will be taken for the first time soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from trigraph.runtime.device.exchange import Memory
from trigraph.runtime.device.heap import populate
from trigraph.runtime.state.pool import Pool

_PAUSE = 0.01  # seconds before each number: rounds go on, and a program that ends now is spared the work


class MemoryAhead:
    """Has memory given in the background, so that no step waits until the system has cleared it.

    That takes a step several times as long as usual: a slot has megabytes, which the system clears page by page.
    """

    def __init__(self, pool: Pool, arrays: Sequence[Memory]) -> None:
        """`arrays`: of the host, with a row for each number. A thread holds them a while longer than the engine."""
        self._pool, self._arrays = pool, arrays
        self._done = 0  # lower numbers have memory, or will have it in a moment

    def prepare(self, count: int) -> None:
        """Sees to the numbers that are taken next, so many of them. Returns at once."""
        numbers = [number for number in self._pool.unused(count) if number >= self._done]
        if numbers and self._arrays:
            self._done = numbers[-1] + 1
            threading.Thread(target=self._work, args=(numbers,), name="trigraph-memory", daemon=True).start()

    def _work(self, numbers: list[int]) -> None:
        # At no lower priority: it would wait seconds for a busy processor, at times with Python's lock in its hands.
        for number in numbers:
            time.sleep(_PAUSE)
            for array in self._arrays:
                populate(array[number])
