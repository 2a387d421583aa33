"""How fast pieces of prompts are computed on this machine."""

from collections import deque
from itertools import pairwise

_MEMORY = 0.9  # weight of a timed piece, one piece later
# Pieces of a size, of which the fastest counts: a busy machine only adds. One is not enough, where others are known.
_LATEST, _ENOUGH = 3, 2
_FIRST_PIECE = 32  # tokens of a piece before any was timed
_SHORTEST = 1e-6  # seconds: the clock may tell none, and times are divided by each other

Piece = tuple[int, float]
"""Tokens and seconds."""


class PrefillSpeed:
    """The speed of the latest pieces of prompts, of a model on a machine. Requests share it.

    A piece reads all weights, however short it is: so times are kept by size, in powers of two.
    """

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0  # decayed sums
        self._sizes: dict[int, deque[Piece]] = {}

    def observe(self, tokens: int, seconds: float) -> None:
        """Takes in the run of a piece."""
        seconds = max(seconds, _SHORTEST)
        self._tokens = _MEMORY * self._tokens + tokens
        self._seconds = _MEMORY * self._seconds + seconds
        size = tokens.bit_length()
        latest = self._sizes.setdefault(size, deque(maxlen=_LATEST))
        latest.append((tokens, seconds))
        if len(latest) == _LATEST:  # texts grow, machines slow down: what was faster with more tokens is out of date
            least = min(seconds for _, seconds in latest)
            for larger in [other for other in self._sizes if other > size and self._fastest(other)[1] < least]:
                del self._sizes[larger]

    def tokens(self, seconds: float) -> int:
        """The tokens whose run takes about `seconds`; at least 1."""
        pieces, most = [(0, 0.0)], float("inf")
        known = [size for size, latest in self._sizes.items() if len(latest) >= _ENOUGH]
        for size in sorted(known or self._sizes, reverse=True):
            tokens, least = self._fastest(size)
            most = min(most, least)  # none takes longer than a larger one, whatever held it up
            pieces.insert(1, (tokens, most))
        for (fewer, shorter), (tokens, longer) in pairwise(pieces):
            if longer > seconds:
                return max(1, int(fewer + (tokens - fewer) * (seconds - shorter) / (longer - shorter)))
        tokens, longest = pieces[-1]
        return max(1, int(tokens * seconds / longest)) if tokens else _FIRST_PIECE

    def seconds(self, tokens: int) -> float:
        """What a prefill of so many tokens takes, as far as is known."""
        return tokens * self._seconds / self._tokens if self._tokens else tokens / _FIRST_PIECE

    def _fastest(self, size: int) -> Piece:
        return min(self._sizes[size], key=lambda piece: piece[1] / piece[0])
