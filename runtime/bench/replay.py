"""Executors whose drafts are right with a chosen probability: they time speculation with weights that predict nothing.

The MTP head runs and its tokens are thrown away, so that a round takes as long as a real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from trigraph.runtime.device.exchange import NO_DEVICE_INPUTS, DeviceInputs
from trigraph.runtime.execution.device_executor import DeviceDrafts, DeviceExecutor
from trigraph.runtime.execution.executor import Executor, Plan
from trigraph.runtime.execution.results import DraftRun
from trigraph.runtime.state.sequence import Sequence as StateSequence

Texts = Sequence[Sequence[int]]


def replaying(executor: Executor, texts: Texts, accept: float, seed: int = 0) -> Executor:
    """An executor like this one that drafts `texts`, known whole sequences, with each token wrong now and then.

    `accept`: the probability that a draft is right.
    """
    drafts = _Replay(texts, accept, executor.steps.vocab, seed)
    if isinstance(executor, DeviceExecutor):
        return _DeviceReplay(executor, drafts)
    return _HostReplay(executor, drafts)


class _Replay:
    """Drafts of known texts."""

    def __init__(self, texts: Texts, accept: float, vocab: int, seed: int) -> None:
        self._texts, self._accept, self._vocab = texts, accept, vocab
        self._random = np.random.default_rng(seed)
        self._text_of: WeakKeyDictionary[StateSequence, Sequence[int]] = WeakKeyDictionary()

    def after(self, sequence: StateSequence, count: int) -> list[int]:
        """`count` drafts after its next token. Raises ValueError when none of the texts begins like the sequence."""
        text, tokens = self._text_of.get(sequence), sequence.tokens
        if text is None:
            known = [text for text in self._texts if list(text[: len(tokens)]) == tokens]
            if not known:
                raise ValueError("a request is of no known text")
            text = self._text_of[sequence] = known[0]
        start = len(tokens) + 1
        known_tokens = text[start : start + count]
        right = self._random.random(len(known_tokens)) < self._accept
        return [int(t) if ok else (int(t) + 1) % self._vocab for t, ok in zip(known_tokens, right, strict=True)]

    def instead(
        self, plan: Plan, drafts: list[list[int]], runs: list[DraftRun]
    ) -> tuple[list[list[int]], list[DraftRun]]:
        """As many drafts of each sequence, and the runs that made the others."""
        return [self.after(part.sequence, len(own)) for part, own in zip(plan, drafts, strict=True)], runs


class _HostReplay(Executor):
    def __init__(self, executor: Executor, replay: _Replay) -> None:
        super().__init__(executor.steps)
        self._replay = replay

    def draft(self, plan: Plan) -> tuple[list[list[int]], list[DraftRun]]:
        return self._replay.instead(plan, *super().draft(plan))


class _DeviceReplay(DeviceExecutor):
    def __init__(self, executor: DeviceExecutor, replay: _Replay) -> None:
        super().__init__(executor.steps, executor.sampler)
        self._replay = replay

    def draft(self, plan: Plan) -> tuple[list[list[int]], list[DraftRun]]:
        return self._replay.instead(plan, *super().draft(plan))

    def to_verify(self, plan: Plan, drafts: DeviceDrafts) -> tuple[list[list[int]], DeviceInputs]:
        return [[*part.tokens, *self._replay.after(part.sequence, part.drafts)] for part in plan], NO_DEVICE_INPUTS
