"""How fast pieces of prompts are computed on this machine."""

from collections import deque
from itertools import pairwise

_MEMORY = 0.9  # weight of a timed piece, one piece later
_LATEST = 4  # pieces of a size, of which the fastest counts: a busy machine only adds
_FIRST_PIECE = 32  # tokens of a piece before any was timed

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
        self._tokens = _MEMORY * self._tokens + tokens
        self._seconds = _MEMORY * self._seconds + seconds
        self._sizes.setdefault(tokens.bit_length(), deque(maxlen=_LATEST)).append((tokens, seconds))

    def tokens(self, seconds: float) -> int:
        """The tokens whose run takes about `seconds`; at least 1."""
        pieces = self._pieces()
        if not pieces or not pieces[-1][1]:
            return _FIRST_PIECE
        for (fewer, shorter), (tokens, longer) in pairwise([(0, 0.0), *pieces]):
            if longer > seconds:
                return max(1, int(fewer + (tokens - fewer) * (seconds - shorter) / (longer - shorter)))
        return max(1, int(pieces[-1][0] * seconds / pieces[-1][1]))

    @property
    def least_seconds(self) -> float:
        """What a piece takes beside its tokens: 0 while that is not known."""
        for (few, shorter), (more, longer) in pairwise(self._pieces()[:2]):
            return max(0.0, shorter - few * (longer - shorter) / (more - few))
        return 0.0

    def seconds(self, tokens: int) -> float:
        """What a prefill of so many tokens takes, as far as is known."""
        return tokens * self._seconds / self._tokens if self._tokens else tokens / _FIRST_PIECE

    def _pieces(self) -> list[Piece]:
        """One of each size, in ascending order: none takes longer than a larger one, whatever held it up."""
        found, most = list[Piece](), float("inf")
        for size in sorted(self._sizes, reverse=True):
            tokens, seconds = min(self._sizes[size], key=lambda piece: piece[1] / piece[0])
            most = min(most, seconds)
            found.append((tokens, most))
        return found[::-1]
