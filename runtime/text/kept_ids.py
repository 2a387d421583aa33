"""The ids of texts that were tokenised lately: a conversation comes again with each of its turns, and a bit longer."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable

_MOST = 1 << 22  # characters of texts, with four bytes for each of their ids: some 10 to 30 MB
_LEAST = 256  # of a text: shorter ones are tokenised as fast as they are found


class KeptIds:
    """Ids of texts, each of which always has the same ones; the least recently used go first. Any thread may ask."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def of(self, text: str, make: Callable[[str], Iterable[int]]) -> Iterable[int]:
        """The ids of a text, which `make` finds where they are not known."""
        if len(text) < _LEAST:
            return make(text)
        with self._lock:
            if (known := self._ids.get(text)) is not None:
                self._ids.move_to_end(text)
                return known
        made = array("i", make(text))
        with self._lock:
            if text not in self._ids:
                self._ids[text] = made
                self._characters += len(text)
            while self._characters > _MOST:
                self._characters -= len(self._ids.popitem(last=False)[0])
        return made
