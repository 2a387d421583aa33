"""Ends a text at the first of its stop strings, whatever the pieces that it comes in."""

from __future__ import annotations

from collections.abc import Iterable

from trigraph.models.errors import TrigraphError


class StopStrings:
    """Passes text on up to the stop string that is complete first, and holds back what may be the start of one.

    The automaton of Aho and Corasick (1975): its state is the longest end of the text that a stop string begins with,
    so that a character costs the same however many stop strings there are.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises TrigraphError when a stop string is empty."""
        self._next: dict[tuple[int, str], int] = {}
        self._depth = [0]  # characters of each state
        self._match = [0]  # length of the longest stop string that ends in it
        for stop in stops:
            self._add(stop)
        self._shorter = [0] * len(self._depth)  # for each state the longest shorter one that it ends with
        self._link()
        self._state = 0
        self._held = ""
        self.match: str | None = None
        """The stop string that ended the text."""

    @property
    def found(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.match is not None

    def push(self, text: str) -> str:
        """The text that is certain not to be part of a stop string."""
        if not self._next:
            return text
        text, start = self._held + text, len(self._held)
        for i, character in enumerate(text[start:], start + 1):
            self._state = self._step(self._state, character)
            if length := self._match[self._state]:
                self.match = text[i - length : i]
                self._state, self._held = 0, ""
                return text[: i - length]
        passed = len(text) - self._depth[self._state]
        self._held = text[passed:]
        return text[:passed]

    def flush(self) -> str:
        """What was held back, when the text ends."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _add(self, stop: str) -> None:
        if not stop:
            raise TrigraphError("a stop string is empty; give at least one character")
        state = 0
        for character in stop:
            following = self._next.setdefault((state, character), len(self._depth))
            if following == len(self._depth):
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
            state = following
        self._match[state] = len(stop)

    def _link(self) -> None:
        """Sets `_shorter`, and matches that end within a longer stop string: shallow states first."""
        for (state, character), following in sorted(self._next.items(), key=lambda edge: self._depth[edge[1]]):
            if state:
                self._shorter[following] = self._step(self._shorter[state], character)
            self._match[following] = self._match[following] or self._match[self._shorter[following]]

    def _step(self, state: int, character: str) -> int:
        while (following := self._next.get((state, character))) is None:
            if not state:
                return 0
            state = self._shorter[state]
        return following
