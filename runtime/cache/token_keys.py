"""Lists of tokens by length and hash."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import numpy as np

Key = tuple[int, str]
"""Length of a list of tokens, and the beginning of its SHA-256."""


def key_of(tokens: list[int]) -> Key:
    """The key of a list."""
    return len(tokens), hashlib.sha256(np.array(tokens, "<i4").tobytes()).hexdigest()[:32]


def beginnings(tokens: list[int], keys: Collection[Key]) -> list[Key]:
    """The keys that beginnings of `tokens` have, in ascending order of length."""
    found, digest, done = [], hashlib.sha256(), 0
    if keys:
        packed = np.array(tokens, "<i4").tobytes()
        for length in sorted({length for length, _ in keys if length <= len(tokens)}):
            digest.update(packed[4 * done : 4 * length])
            done = length
            if (key := (length, digest.hexdigest()[:32])) in keys:
                found.append(key)
    return found
