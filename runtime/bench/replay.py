"""A drafter that is right with a chosen probability: times speculation on weights that predict nothing."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from trigraph.runtime.decoding.request import Request
from trigraph.runtime.decoding.speculation import MTPDrafter
from trigraph.runtime.execution.steps import Steps


class ReplayDrafter:
    """Knows how the text goes on and drafts that, each token wrong with probability 1 - `accept`.

    The MTP head runs as in earnest and its tokens are thrown away, so that a round costs what it costs.
    """

    def __init__(self, steps: Steps, text: SequenceOf[int], accept: float, seed: int = 0) -> None:
        """`text` is the whole text: prompt and continuation."""
        self._head = MTPDrafter(steps)
        self._text = text
        self._accept = accept
        self._vocab = steps.vocab
        self._random = np.random.default_rng(seed)

    def propose(self, requests: list[Request], limits: list[int]) -> list[list[int]]:
        """See Drafter."""
        return [
            self._replay(request.sequence.length + 1, len(drafts))
            for request, drafts in zip(requests, self._head.propose(requests, limits), strict=True)
        ]

    def _replay(self, start: int, count: int) -> list[int]:
        known = self._text[start : start + count]
        right = self._random.random(len(known)) < self._accept
        return [int(t) if ok else (int(t) + 1) % self._vocab for t, ok in zip(known, right, strict=True)]
