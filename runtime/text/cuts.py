"""Where a text can be cut so that the tokens of its parts are the tokens of the whole.

Tokenising takes some hundred bytes a character, and longer a character the longer the text: parts keep both small. The
rules are those of the regular expressions in `models.tokenizer`: whatever matches a letter or a digit ends before what
is neither, a digit stands alone, a space begins a match, and nothing goes on after the last line break of white space.
NFC joins neither an ASCII character nor punctuation to the one before it, and nothing to a line break.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from trigraph.models.errors import TrigraphError

PART = 1 << 12  # characters: a millisecond or two
MOST_UNCUT = 1 << 18
_ASCII = [chr(code) for code in range(128)]
# Of scripts that are written without spaces; no marks, which one of the expressions takes for punctuation.
_LETTERS = "A-Za-z\u0e01-\u0e30\u3041-\u3096\u30a1-\u30fa\u30fc\u4e00-\u9fff\uac00-\ud7a3"
_PUNCTUATION = "\u3001\u3002\u300a-\u3011\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f\u201c\u201d\u2026"


class Cuts:
    """The places where texts can be cut for a vocabulary."""

    def __init__(self, added: Iterable[str]) -> None:
        """`added`: texts that are one token wherever they stand, so that no cut may be within them."""
        pairs = {pair for text in added for pair in pairwise(text)}
        inside = {after for _, after in pairs}
        others = [c for c in _ASCII if c not in inside]
        after_letter = "".join(re.escape(c) for c in others if not c.isalnum())
        if not re.search(f"[{_PUNCTUATION}]", "".join(inside)):
            after_letter += _PUNCTUATION
        after_digit = "".join(map(re.escape, others))
        rules = []
        if after_letter:
            rules.append(f"[{_LETTERS}](?=[{after_letter}])")
        if after_digit:
            rules.append(f"[0-9](?=[{after_digit}])")
        if " " in others:
            rules.append(r"\S(?= )")
        if not any(before in "\r\n" for before, _ in pairs):
            rules.append(r"[\r\n](?=[^\S\r\n]*\S)")
        self._place = re.compile("|".join(rules) or "(?!)")

    def parts(self, text: str) -> Iterator[str]:
        """The text in parts of some thousand characters. Raises TrigraphError where one cannot be cut for very long."""
        start = 0
        while len(text) - start > PART:
            cut = self._place.search(text, start + PART, start + MOST_UNCUT)
            if cut is None and len(text) - start > MOST_UNCUT:
                raise TrigraphError(
                    f"the text has {MOST_UNCUT:,} characters without a space or a line break, from number {start:,} on;"
                    " break them up"
                )
            end = len(text) if cut is None else cut.end()
            yield text[start:end]
            start = end
        yield text[start:]
