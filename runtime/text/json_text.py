"""Where JSON that comes in pieces ends, and the characters that its strings are of."""

from __future__ import annotations

import re

_WITHIN, _OUTSIDE = re.compile(r'["\\\n]'), re.compile(r'["{}\[\]]')
_PAIRS = {"{": "}", "[": "]"}
_HEX = "[0-9a-fA-F]"
HIGH, LOW = rf"\\u[dD][89abAB]{_HEX}{{2}}", rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_HALF = re.compile(rf"(\\[^u]|{HIGH}{LOW})|{HIGH}|{LOW}")


def whole_characters(text: str) -> str:
    """A JSON text with U+FFFD for each half of a surrogate pair: a model may write one, and nothing can send it."""
    return _HALF.sub(lambda match: match[1] or r"\ufffd", text)


class JsonText:
    """Follows an object or an array; what is no JSON is followed by its brackets and quotes."""

    def __init__(self) -> None:
        self._missing: list[str] = []
        self._quoted = self._escaped = False
        self._last = ""
        self.broken = False
        """Whether a string has a line break in it, as none can have."""

    @property
    def quoted(self) -> bool:
        """Whether it is within a string."""
        return self._quoted

    def push(self, text: str) -> int:
        """Takes more text; where in it the outermost bracket closes, or -1."""
        at = int(self._escaped)
        self._escaped = self._escaped and not text
        while match := (_WITHIN if self._quoted else _OUTSIDE).search(text, at):
            mark, at = match[0], match.end()
            if mark == '"':
                self._quoted = not self._quoted
            elif mark == "\\":
                self._escaped = at == len(text)
                at += 1
            elif mark == "\n":
                self.broken = True
            elif mark in _PAIRS:
                self._missing.append(_PAIRS[mark])
            elif self._missing:
                self._missing.pop()
                if not self._missing:
                    return at
        self._last = text.rstrip()[-1:] or self._last
        return -1

    def missing(self) -> str | None:
        """The brackets that are left to close; None where they alone do not make it whole."""
        return None if self._quoted or self._last in ",:" else "".join(reversed(self._missing))
