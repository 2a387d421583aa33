"""Rows of images that were computed lately: the same image, in whatever prompt, takes no time again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


class EmbeddingCache:
    """Rows by the digest of their image; the least recently used ones make room for new ones."""

    def __init__(self, budget: int) -> None:
        """`budget` in bytes. The newest rows stay, even where they alone exceed it."""
        self.budget = budget
        self.nbytes = 0
        self.computed = self.found = 0
        """Images so far."""
        self._rows: OrderedDict[bytes, Rows] = OrderedDict()

    def __len__(self) -> int:
        """Images."""
        return len(self._rows)

    def __contains__(self, digest: bytes) -> bool:
        """Whether an image's rows are there."""
        return digest in self._rows

    def rows(self, digest: bytes, compute: Callable[[], Rows]) -> Rows:
        """The rows of an image, read-only [tokens, hidden]; computed where they are not there."""
        kept = self._rows.get(digest)
        if kept is not None:
            self.found += 1
            self._rows.move_to_end(digest)
            return kept
        kept = self._rows[digest] = compute()
        kept.flags.writeable = False
        self.computed += 1
        self.nbytes += kept.nbytes
        while self.nbytes > self.budget and len(self._rows) > 1:
            self.nbytes -= self._rows.popitem(last=False)[1].nbytes
        return kept
