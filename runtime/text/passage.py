"""Reasoning and content on their way to whoever reads a reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trigraph.runtime.text.lexemes import FENCE, SPACES, Lexeme
from trigraph.runtime.text.reply import Content, Event, Reasoning


class Passage:
    """Reasoning or content on its way. Line breaks at its end, and what follows them, wait: they may be a tag's."""

    def __init__(self, event: type[Reasoning] | type[Content]) -> None:
        self._event = event
        self._gap: list[str] = []

    def add(self, text: str) -> Iterator[Event]:
        """More of it."""
        body = text.rstrip(SPACES)
        if not body and self._gap:
            self._gap.append(text)
            return
        space = text[len(body) :]
        first = min((place for mark in "\r\n" if (place := space.find(mark)) >= 0), default=len(space))
        certain = "".join([*self._gap, body, space[:first]])
        self._gap = [space[first:]] if space[first:] else []
        if certain:
            yield self._event(certain)

    def add_gap(self) -> Iterator[Event]:
        """The line breaks at the end of the reply."""
        if self._gap:
            yield self._event("".join(self._gap))
        self._gap = []

    def drop_gap(self) -> None:
        """Leaves the line breaks to the tag that comes."""
        self._gap = []


def end_of(fence: Lexeme) -> Callable[[Lexeme], bool]:
    """What ends a block of code: as many marks as began it, or more, alone in their line."""
    mark = fence.text[0]
    length = len(fence.text) - len(fence.text.lstrip(mark))

    def ends(lexeme: Lexeme) -> bool:
        marks = lexeme.text.rstrip()
        return lexeme.kind == FENCE and len(marks) >= length and not marks.strip(mark)

    return ends
