"""Reads text that comes in pieces, tag by tag."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

from trigraph.runtime.text.reply import Event

_T = TypeVar("_T")
Parsing: TypeAlias = Generator[Event | None, None, _T]
"""Parses a part of the text: yields events, and None where it needs more text."""


class TagReader:
    """Text that has come and was not read yet. `ended`: no more will come."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False

    def accept(self, literal: str) -> Parsing[str]:
        """Reads white space and `literal` if the text goes on so; returns what was read."""
        while True:
            rest = self.text.lstrip()
            if rest.startswith(literal):
                read = self.text[: len(self.text) - len(rest) + len(literal)]
                self.text = self.text[len(read) :]
                return read
            if self.ended or not literal.startswith(rest):
                return ""
            yield None

    def skip_lines(self) -> Parsing[None]:
        """Reads the line breaks that come next."""
        while True:
            self.text = self.text.lstrip("\n")
            if self.text or self.ended:
                return
            yield None

    def skip_line(self) -> Parsing[None]:
        """Reads one line break, if it comes next."""
        while not (self.text or self.ended):
            yield None
        self.text = self.text.removeprefix("\n")

    def until(self, *tags: str) -> Parsing[tuple[str, str]]:
        """Reads up to the first of the tags, and that; returns both. The tag is empty when there is none."""
        while True:
            tag = _first(self.text, tags)
            if tag or self.ended:
                text, _, self.text = self.text.partition(tag) if tag else (self.text, "", "")
                return text, tag
            yield None

    def pass_on(self, event: Callable[[str], Event], *tags: str, trim: bool = True) -> Parsing[tuple[str, str]]:
        """Passes text on as events up to the first of the tags, and reads that.

        Returns the line breaks before the tag, which were not passed on if `trim`, and the tag; at the end of the
        reply both are empty.
        """
        while True:
            tag = _first(self.text, tags)
            certain = self.text.partition(tag)[0] if tag else self.text
            if not tag and not self.ended:
                certain = certain[: len(certain) - _begun(certain, tags)]
            text = certain.rstrip("\n") if trim and tags and (tag or not self.ended) else certain
            if text:
                yield event(text)
            self.text = self.text[len(text) :]
            if tag:
                gap = certain[len(text) :]
                self.text = self.text[len(gap) + len(tag) :]
                return gap, tag
            if self.ended:
                return "", ""
            yield None


def _first(text: str, tags: Iterable[str]) -> str:
    """The tag that comes first in a text; empty when there is none."""
    places = [(place, tag) for tag in tags if (place := text.find(tag)) >= 0]
    return min(places)[1] if places else ""


def _begun(text: str, tags: Iterable[str]) -> int:
    """How many characters at the end of a text may be the beginning of a tag."""
    lengths = (n for tag in tags for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n]))
    return max(lengths, default=0)
