"""Ends a text at the first of its stop strings, whatever the pieces that it comes in."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache

from trigraph.models.errors import TrigraphError


class StopStrings:
    """Passes text on up to the stop string that is complete first, and holds back what may be the start of one."""

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises TrigraphError when a stop string is empty."""
        self._automaton = _automaton(tuple(stops))
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
        automaton = self._automaton
        if len(automaton.depth) == 1:  # no stop strings
            return text
        text, start = self._held + text, len(self._held)
        for i, character in enumerate(text[start:], start + 1):
            self._state = automaton.step(self._state, ord(character))
            if length := automaton.match[self._state]:
                self.match = text[i - length : i]
                self._state, self._held = 0, ""
                return text[: i - length]
        passed = len(text) - automaton.depth[self._state]
        self._held = text[passed:]
        return text[:passed]

    def flush(self) -> str:
        """What was held back, when the text ends."""
        held, self._held, self._state = self._held, "", 0
        return held


class _Automaton:
    """The automaton of Aho and Corasick (1975), in some twenty bytes for each character of the stop strings.

    Its state is the longest end of the text that a stop string begins with, so that a character costs the same however
    many stop strings there are.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.depth = array("i", [0])
        """Characters of each state."""
        self.match = array("i", [0])
        """Length of the longest stop string that ends in it."""
        self._onward = array("i", [-1])  # the character from each state to the one with the next number, or -1
        self._branches: dict[tuple[int, int], int] = {}  # other edges, by state and character
        for stop in stops:
            self._add(stop)
        self._shorter = array("i", [0]) * len(self.depth)  # for each state the longest shorter one that it ends with
        self._link()

    def step(self, state: int, character: int) -> int:
        """The state after one more character."""
        while not (following := self._child(state, character)) and state:
            state = self._shorter[state]
        return following

    def _child(self, state: int, character: int) -> int:
        """The state that an edge leads to; 0 where there is none."""
        return state + 1 if self._onward[state] == character else self._branches.get((state, character), 0)

    def _add(self, stop: str) -> None:
        if not stop:
            raise TrigraphError("a stop string is empty; give at least one character")
        state = 0
        for character in map(ord, stop):
            following = self._child(state, character)
            if not following:
                following = len(self.depth)
                if following == state + 1:
                    self._onward[state] = character
                else:
                    self._branches[state, character] = following
                self._onward.append(-1)
                self.depth.append(self.depth[state] + 1)
                self.match.append(0)
            state = following
        self.match[state] = len(stop)

    def _link(self) -> None:
        """Sets `_shorter`, and matches that end within a longer stop string: shallow states first."""
        edges = [(state, character, state + 1) for state, character in enumerate(self._onward) if character >= 0]
        edges += [(state, character, following) for (state, character), following in self._branches.items()]
        for state, character, following in sorted(edges, key=lambda edge: self.depth[edge[2]]):
            if state:
                self._shorter[following] = self.step(self._shorter[state], character)
            self.match[following] = self.match[following] or self.match[self._shorter[following]]


_automaton = lru_cache(maxsize=16)(_Automaton)  # the choices of a request have the same one
