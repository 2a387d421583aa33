"""Reference-counted numbers of state slots and KV pages."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from trigraph.models.errors import TrigraphError


class Pool:
    """Numbers 0 .. size - 1. The lowest free one is taken first, so memory that was never used stays untouched."""

    def __init__(self, size: int, noun: str, knob: str) -> None:
        """`knob`: the argument of `load` that makes the pool larger."""
        self.size = size
        self._noun, self._knob = noun, knob
        self.reclaim: Callable[[int], object] = lambda count: None
        """Frees so many numbers where their holder can do without them."""
        self._references: dict[int, int] = {}
        self._unused = 0  # this number and those after it were never taken
        self._returned: list[int] = []  # a heap of the free ones before it

    @property
    def free(self) -> int:
        """How many numbers nobody holds."""
        return self.size - len(self._references)

    def unused(self, count: int) -> range:
        """The next `count` numbers that were never taken."""
        missing = max(0, count - len(self._returned))
        return range(self._unused, min(self._unused + missing, self.size))

    def require(self, count: int) -> None:
        """Raises TrigraphError when fewer than `count` numbers are free, and `reclaim` does not change that."""
        if count <= self.free:
            return
        self.reclaim(count)
        if count > self.free:
            shortage = f"{count} {self._noun} are needed and {self.free} of {self.size} are free"
            if not self.free:
                shortage = f"all {self.size} {self._noun} are in use"
            raise TrigraphError(f"{shortage}; release sequences or load with more `{self._knob}`")

    def take(self) -> int:
        """A number with one reference. Raises TrigraphError when none is free."""
        self.require(1)
        if self._returned:
            number = heapq.heappop(self._returned)
        else:
            number = self._unused
            self._unused += 1
        self._references[number] = 1
        return number

    def share(self, number: int) -> int:
        """Adds a reference to `number`."""
        self._references[number] += 1
        return number

    def drop(self, number: int) -> None:
        """Removes a reference; the last one frees the number."""
        self._references[number] -= 1
        if not self._references[number]:
            del self._references[number]
            heapq.heappush(self._returned, number)

    def references(self, number: int) -> int:
        """How many are held."""
        return self._references[number]
