"""Drafts without a model: what followed the last time that the text ran as it does now."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NGRAM = 3
"""Tokens that must match, at the least."""
LONGEST = 16
"""Tokens of a match that are compared; a longer one is no better."""
CANDIDATES = 8
"""Places that are compared, the latest ones."""
SEGMENT = 32768
"""Tokens that one call takes in, or some more: those take a few milliseconds."""
_FEW = 512  # tokens that are taken in one by one
_BITS = 15  # of a place in its segment, behind the key's
_FACTORS = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9  # large and odd, one for each token
_MASK = (1 << 48) - 1


class Match(NamedTuple):
    """Tokens that are likely to follow, after a match of `length` tokens."""

    drafts: list[int]
    length: int


class _Segment:
    """Where the three tokens of each key ended, in a part of the text: eight bytes a token, sorted by key and place."""

    def __init__(self, tokens: Sequence[int], start: int, stop: int) -> None:
        """Sorts the places from `start` + 1 to `stop`."""
        self._first = max(start, NGRAM - 1) + 1
        ids = np.array(tokens[self._first - NGRAM : stop], np.int64).view(np.uint64)
        first, second, third = (factor * ids for factor in map(np.uint64, _FACTORS))
        keys = (first[:-2] + second[1:-1] + third[2:]) & np.uint64(_MASK)
        self._sorted: NDArray[np.int64] = (keys.view(np.int64) << _BITS) + np.arange(len(keys))
        self._sorted.sort()

    def places(self, key: int) -> Iterator[int]:
        """The places of a key, the latest first."""
        at = int(self._sorted.searchsorted((key + 1) << _BITS))
        while at and (found := int(self._sorted[at - 1])) >> _BITS == key:
            at -= 1
            yield self._first + (found & ((1 << _BITS) - 1))


class NgramIndex:
    """Where each three tokens of one text ended, the latest place first.

    A long text is taken in a segment a call, so that no round waits for all of it: what follows is found later.
    """

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._settled = 0  # tokens in segments
        self._latest: dict[int, int] = {}  # of the tokens after these, the latest place by key
        self._earlier = array("i")  # and the place before each; 0 for none
        self._size = 0  # tokens taken in

    def find(self, tokens: Sequence[int], token: int, most: int) -> Match:
        """What may follow `tokens` and then `token`: at most `most` tokens, none where nothing matches.

        They follow the place with the longest match, the latest of several. Where they reach the end of the text,
        they repeat themselves; at an image, whose tokens are negative, they end. `tokens` are those of the last call
        and more.
        """
        self._extend(tokens)
        size = len(tokens)
        if size < NGRAM - 1:
            return Match([], 0)
        best, best_length, ending = 0, 0, [tokens[-2], tokens[-1], token]
        # Others may have the same key.
        same = (place for place in self._places(_key(*ending)) if [*tokens[place - NGRAM : place]] == ending)
        for place in islice(same, CANDIDATES):
            length = NGRAM
            while length < LONGEST and length < place and tokens[place - length - 1] == tokens[size - length]:
                length += 1
            if length > best_length:
                best, best_length = place, length
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

    def _places(self, key: int) -> Iterator[int]:
        place = self._latest.get(key, 0)
        while place:
            yield place
            place = self._earlier[place - self._settled - 1]
        for segment in reversed(self._segments):
            yield from segment.places(key)

    def _extend(self, tokens: Sequence[int]) -> None:
        size = len(tokens)
        if size - self._size > _FEW or size - self._settled > SEGMENT:
            stop = min(size, self._settled + SEGMENT)
            self._segments.append(_Segment(tokens, self._settled, stop))
            self._settled = self._size = stop
            self._latest, self._earlier = {}, array("i")
        if size - self._size > _FEW:
            return
        latest, earlier = self._latest, self._earlier
        for place in range(self._size + 1, size + 1):
            key = _key(*tokens[place - NGRAM : place]) if place >= NGRAM else -1
            earlier.append(latest.get(key, 0))
            latest[key] = place
        self._size = max(self._size, size)


def _key(first: int, second: int, third: int) -> int:
    """A number for three tokens in a row, which others have by chance alone."""
    return (first * _FACTORS[0] + second * _FACTORS[1] + third * _FACTORS[2]) & _MASK
