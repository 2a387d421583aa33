"""Beginnings that two lists share."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T", str, list[int])


def common_prefix(a: T, b: T) -> int:
    """Length of the beginning that two texts, or lists of tokens, share."""
    known, limit = 0, min(len(a), len(b))
    while known < limit:
        middle = (known + limit + 1) // 2
        if a[known:middle] == b[known:middle]:
            known = middle
        else:
            limit = middle - 1
    return known
