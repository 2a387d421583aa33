"""Names of control tokens that people write, kept apart from the control tokens of a chat template.

A mark within such a name says that it is text: `Tokenizer.encode` leaves the mark out, and makes no control token of
the name. The mark is a character that Unicode reserves for a program's own use, so it is in no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

MARK = "\ufdd0"


class ControlNames:
    """The names of a vocabulary's control tokens (`<|im_end|>`)."""

    def __init__(self, names: Iterable[str]) -> None:
        longest_first = sorted({name for name in names if len(name) > 1}, key=len, reverse=True)
        self._name = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        # A text may also end within a name, which the text that a template puts after it would complete.
        begun = sorted({name[:n] for name in longest_first for n in range(1, len(name))}, key=len, reverse=True)
        self._begun = re.compile(f"(?:{'|'.join(map(re.escape, begun)) or '(?!)'})\\Z")
        self._longest = len(longest_first[0]) if longest_first else 1

    def as_text(self, value: Any) -> Any:
        """A JSON value with the names in its strings marked."""
        if isinstance(value, str):
            marked = self.marked(value.replace(MARK, "\N{REPLACEMENT CHARACTER}"))
            end = max(0, len(marked) - self._longest)
            return marked[:end] + self._begun.sub(_with_mark, marked[end:])
        if isinstance(value, dict):
            return {self.as_text(key): self.as_text(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.as_text(item) for item in value]
        return value

    def marked(self, text: str) -> str:
        """A text with its names marked."""
        return self._name.sub(_with_mark, text)

    def pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """The text between control tokens, without marks, and the names of those; each with whether it is a name."""
        place = 0
        for match in self._name.finditer(text):
            yield text[place : match.start()].replace(MARK, ""), False
            yield match[0], True
            place = match.end()
        yield text[place:].replace(MARK, ""), False


def _with_mark(match: re.Match[str]) -> str:
    return match[0][0] + MARK + match[0][1:]
