"""Reference-counted numbers of state slots and KV pages."""

from __future__ import annotations

import heapq

from trigraph.models.errors import TrigraphError


class Pool:
    """Numbers 0 .. size - 1. The lowest free one is taken first, so memory that was never used stays untouched."""

    def __init__(self, size: int, noun: str) -> None:
        self.size = size
        self._noun = noun
        self._free = list(range(size))
        self._references = [0] * size

    @property
    def free(self) -> int:
        """How many numbers nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A number with one reference. Raises TrigraphError when none is free."""
        if not self._free:
            raise TrigraphError(
                f"all {self.size} {self._noun} are in use; release sequences or load with more `sequences`"
            )
        number = heapq.heappop(self._free)
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
            heapq.heappush(self._free, number)

    def shared(self, number: int) -> bool:
        """Whether more than one reference is held."""
        return self._references[number] > 1
