"""Drafts without a model: what followed the last time that the text ran as it does now."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

NGRAM = 3
"""Tokens that must match, at the least."""
LONGEST = 16
"""Tokens of a match that are compared; a longer one is no better."""
CANDIDATES = 8
"""Places that are compared, the latest ones."""
_WINDOW = 32768  # places that are remembered; 5 MB


class Match(NamedTuple):
    """Tokens that are likely to follow, after a match of `length` tokens."""

    drafts: list[int]
    length: int


class NgramIndex:
    """Where each three tokens of one text ended, the latest place first.

    A token takes constant time, and memory is bounded: what lies further back than the window is forgotten.
    """

    def __init__(self, window: int = _WINDOW) -> None:
        self._window = window
        self._latest: dict[tuple[int, int, int], int] = {}
        self._earlier = array("i", [0] * NGRAM)  # the place before each, 0 for none; as long as the text, or the window
        self._size = 0  # tokens taken in

    def find(self, tokens: Sequence[int], token: int, most: int) -> Match:
        """What may follow `tokens` and then `token`: at most `most` tokens, none where nothing matches.

        They follow the place with the longest match, the latest of several. Where they reach the end of the text,
        they repeat themselves; at an image, whose tokens are negative, they end. `tokens` are those of the last call
        and more.
        """
        self._extend(tokens)
        size, window = len(tokens), self._window
        place = self._latest.get((tokens[-2], tokens[-1], token), 0) if size >= NGRAM - 1 else 0
        best, best_length = 0, 0
        for _ in range(CANDIDATES):
            if place <= max(0, size - window):
                break
            length = NGRAM
            while length < LONGEST and length < place and tokens[place - length - 1] == tokens[size - length]:
                length += 1
            if length > best_length:
                best, best_length = place, length
            place = self._earlier[place % window]
        if not best:
            return Match([], 0)
        drafts = list(tokens[best : best + most])
        if drafts and min(drafts) < 0:  # an image, which no text goes on with
            drafts = list(takewhile(lambda draft: draft >= 0, drafts))
        elif len(drafts) < most:
            drafts.append(token)
            period = len(drafts)
            while len(drafts) < most:
                drafts.append(drafts[-period])
        return Match(drafts, best_length)

    def _extend(self, tokens: Sequence[int]) -> None:
        latest, earlier, window = self._latest, self._earlier, self._window
        for place in range(max(NGRAM, self._size + 1), len(tokens) + 1):
            if place > window + NGRAM:
                oldest = place - window
                forgotten = (tokens[oldest - 3], tokens[oldest - 2], tokens[oldest - 1])
                if latest.get(forgotten) == oldest:
                    del latest[forgotten]
            key = (tokens[place - 3], tokens[place - 2], tokens[place - 1])
            if place == len(earlier) < window:
                earlier.append(latest.get(key, 0))
            else:
                earlier[place % window] = latest.get(key, 0)
            latest[key] = place
        self._size = max(self._size, len(tokens))
