"""Where a text can be cut so that the tokens of its parts are the tokens of the whole.

Tokenising takes some hundred bytes a character, and longer a character the longer the text: parts keep both small. The
rules are those of the regular expressions in `models.tokenizer`: whatever matches a letter or a digit ends before what
is neither, a digit stands alone, and a space begins a match. NFC joins no ASCII character to the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from trigraph.models.errors import TrigraphError

PART = 1 << 14  # characters: a few milliseconds
MOST_UNCUT = 1 << 18
_ASCII = [chr(code) for code in range(128)]
_LETTERS = "A-Za-z\u4e00-\u9fff"


class Cuts:
    """The places where texts can be cut for a vocabulary."""

    def __init__(self, added: Iterable[str]) -> None:
        """`added`: texts that are one token wherever they stand, so that no cut may be within them."""
        inside = {after for text in added for _, after in pairwise(text)}
        others = [c for c in _ASCII if c not in inside]
        after_letter = "".join(re.escape(c) for c in others if not c.isalnum())
        after_digit = "".join(map(re.escape, others))
        rules = []
        if after_letter:
            rules.append(f"[{_LETTERS}](?=[{after_letter}])")
        if after_digit:
            rules.append(f"[0-9](?=[{after_digit}])")
        if " " in others:
            rules.append(r"\S(?= )")
        self._place = re.compile("|".join(rules) or "(?!)")

    def parts(self, text: str) -> Iterator[str]:
        """The text in parts of some thousand characters. Raises TrigraphError where one cannot be cut for very long."""
        start = 0
        while len(text) - start > PART:
            found = self._place.search(text, start + PART, start + MOST_UNCUT)
            if found is None and len(text) - start > MOST_UNCUT:
                raise TrigraphError(
                    f"the text has {MOST_UNCUT:,} characters without a space between words, from number {start:,} on; "
                    "shorten them"
                )
            end = len(text) if found is None else found.end()
            yield text[start:end]
            start = end
        yield text[start:]
