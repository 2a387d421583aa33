"""What is added to the logits of some tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.models.checks import is_a
from trigraph.models.errors import TrigraphError, quote

LARGEST = 1e30
"""The most that is added to a logit of float32, for each of many tokens."""


class Biases(tuple[tuple[int, float], ...]):
    """Pairs of a token id and what is added to its logit; -inf bans the token.

    They are checked once, however many choices of a request share them.
    """

    def __new__(cls, pairs: Any) -> Biases:
        """Raises TrigraphError for anything but a tuple, a list or an iterator of such pairs."""
        if isinstance(pairs, Biases):
            return pairs
        if isinstance(pairs, Iterator):  # as dataclasses.asdict gives them
            pairs = tuple(pairs)
        for pair in pairs if isinstance(pairs, tuple | list) else [pairs]:
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and is_a(pair[0], int) and is_a(pair[1], float)):
                raise TrigraphError(f"logit_bias has {quote(pair)}; give pairs of a token id and a number")
            if not (abs(pair[1]) <= LARGEST or pair[1] == -math.inf):
                raise TrigraphError(
                    f"logit_bias of token {pair[0]} is {pair[1]}; it must be from -{LARGEST:g} to {LARGEST:g}, "
                    "or -inf to ban the token"
                )
        return super().__new__(cls, pairs)

    def add(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy of `logits` [n], of the first n tokens, with the biases of these."""
        ids, values = self._arrays
        known = ids < len(logits)
        biased = logits.copy()
        np.add.at(biased, ids[known], values[known])
        return biased

    @cached_property
    def ends(self) -> set[int]:
        """The lowest and the highest token id, if there are any."""
        tokens = [token for token, _ in self]
        return {min(tokens), max(tokens)} if tokens else set()

    @cached_property
    def banned(self) -> set[int]:
        """The tokens that are never chosen."""
        return {token for token, bias in self if bias == -math.inf}

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return np.array([token for token, _ in self], np.int64), np.array([bias for _, bias in self], np.float32)
