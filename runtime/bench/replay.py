"""A drafter that is right with a chosen probability: times speculation with weights that predict nothing."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from weakref import WeakKeyDictionary

import numpy as np

from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.requests.running import Running
from trigraph.runtime.speculation import MTPDrafter, Proposal


class ReplayDrafter:
    """Drafts sequences that are known beforehand, each token wrong with probability 1 - `accept`.

    The MTP head runs and its tokens are thrown away, so that a round takes as long as a real one.
    """

    by_head = True

    def __init__(self, steps: Steps, texts: SequenceOf[SequenceOf[int]], accept: float, seed: int = 0) -> None:
        """`texts` are those of whole sequences: prompt and completion."""
        self._head = MTPDrafter(steps)
        self._texts = texts
        self._accept = accept
        self._vocab = steps.vocab
        self._random = np.random.default_rng(seed)
        self._text_of: WeakKeyDictionary[Running, SequenceOf[int]] = WeakKeyDictionary()

    def instead(self, running: list[Running], limits: list[int]) -> list[list[int]] | None:
        """See Drafter. Raises ValueError for a request that none of the texts begins like."""
        return [self._replay(request, limit) for request, limit in zip(running, limits, strict=True)]

    def propose(self, running: list[Running], limits: list[int]) -> Proposal:
        """See Drafter. Raises ValueError for a request that none of the texts begins like."""
        proposed = self._head.propose(running, limits)
        drafts = [self._replay(request, len(guess)) for request, guess in zip(running, proposed.drafts, strict=True)]
        return Proposal(drafts, proposed.runs)

    def _replay(self, request: Running, count: int) -> list[int]:
        text, tokens = self._text_of.get(request), request.sequence.tokens
        if text is None:
            known = [text for text in self._texts if list(text[: len(tokens)]) == tokens]
            if not known:
                raise ValueError("a request is of no known text")
            text = self._text_of[request] = known[0]
        start = len(tokens) + 1
        known_tokens = text[start : start + count]
        right = self._random.random(len(known_tokens)) < self._accept
        return [int(t) if ok else (int(t) + 1) % self._vocab for t, ok in zip(known_tokens, right, strict=True)]
