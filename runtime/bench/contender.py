"""What is timed: the same steps of the same file in two engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trigraph.runtime.engine import Engine
from trigraph.runtime.execution.steps import DraftResult


class Contender(Protocol):
    """An engine with one text. Each call returns when its results are there."""

    name: str

    @property
    def has_mtp(self) -> bool:
        """Whether `draft` works."""

    def reset(self) -> None:
        """Forgets the text."""

    def prefill(self, tokens: Sequence[int]) -> None:
        """Adds tokens to the text; the logits of the last one are computed."""

    def verify(self, tokens: Sequence[int]) -> None:
        """Adds 1 to 8 tokens to the text; the logits of each one are computed."""

    def draft(self, token: int) -> None:
        """One step of the MTP head, in a chain."""


class Trigraph:
    """Our own engine; see Contender."""

    name = "trigraph"

    def __init__(self, engine: Engine) -> None:
        self._steps = engine.steps
        self._sequence = self._steps.new_sequence()
        self._chain: DraftResult | None = None

    @property
    def has_mtp(self) -> bool:
        """See Contender."""
        return self._steps.can_draft

    def reset(self) -> None:
        """See Contender."""
        self._steps.release(self._sequence)
        self._sequence = self._steps.new_sequence()
        self._chain = None

    def prefill(self, tokens: Sequence[int]) -> None:
        """See Contender."""
        self._steps.prefill([self._sequence], [tokens])

    def verify(self, tokens: Sequence[int]) -> None:
        """See Contender. All tokens are kept, so that the next step commits them."""
        self._chain = None
        self._steps.verify([self._sequence], [tokens])
        self._steps.accept(self._sequence, len(tokens))

    def draft(self, token: int) -> None:
        """See Contender. The first one of a chain also makes up for the head's missing entries."""
        if self._chain is None:
            self._chain = self._steps.draft([self._sequence], [token])
        else:
            self._chain = self._steps.draft_more([self._sequence], self._chain)
