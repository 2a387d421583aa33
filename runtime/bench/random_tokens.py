"""Tokens to time with: the cost of a step depends on them through its experts alone."""

import numpy as np


class RandomTokens:
    """A stream of uniform token ids, the same in each run."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._random = np.random.default_rng(0)

    def draw(self, count: int) -> list[int]:
        """The next `count` ids."""
        return [int(token) for token in self._random.integers(0, self._vocab, count)]
