"""A drafter that is right with a chosen probability: times speculation on weights that predict nothing."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from trigraph.runtime.decoding.speculation import MTPDrafter
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence


class ReplayDrafter:
    """Knows how the text goes on and drafts that, each token wrong with probability 1 - `accept`.

    The MTP head runs as in earnest and its tokens are thrown away, so that a round costs what it costs.
    """

    def __init__(self, steps: Steps, text: SequenceOf[int], accept: float, seed: int = 0) -> None:
        """`text` is the whole text: prompt and continuation."""
        self._head = MTPDrafter(steps, floor=0.0)
        self._text = text
        self._accept = accept
        self._vocab = steps.vocab
        self._random = np.random.default_rng(seed)

    def propose(self, sequence: Sequence, token: int, limit: int) -> list[int]:
        """See Drafter."""
        drafts = self._head.propose(sequence, token, limit)
        start = sequence.length + 1
        known = self._text[start : start + len(drafts)]
        right = self._random.random(len(known)) < self._accept
        return [int(t) if ok else (int(t) + 1) % self._vocab for t, ok in zip(known, right, strict=True)]
