"""A drafter that is right with a chosen probability: times speculation with weights that predict nothing."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from trigraph.runtime.decoding.running import Running
from trigraph.runtime.decoding.speculation import MTPDrafter
from trigraph.runtime.execution.steps import Steps


class ReplayDrafter:
    """Drafts a sequence that is known beforehand, each token wrong with probability 1 - `accept`.

    The MTP head runs and its tokens are thrown away, so that a round takes as long as a real one.
    """

    def __init__(self, steps: Steps, tokens: SequenceOf[int], accept: float, seed: int = 0) -> None:
        """`tokens` are those of the whole sequence: prompt and completion."""
        self._head = MTPDrafter(steps)
        self._tokens = tokens
        self._accept = accept
        self._vocab = steps.vocab
        self._random = np.random.default_rng(seed)

    def propose(self, running: list[Running], limits: list[int]) -> list[list[int]]:
        """See Drafter."""
        return [
            self._replay(request.sequence.length + 1, len(drafts))
            for request, drafts in zip(running, self._head.propose(running, limits), strict=True)
        ]

    def _replay(self, start: int, count: int) -> list[int]:
        known = self._tokens[start : start + count]
        right = self._random.random(len(known)) < self._accept
        return [int(t) if ok else (int(t) + 1) % self._vocab for t, ok in zip(known, right, strict=True)]
