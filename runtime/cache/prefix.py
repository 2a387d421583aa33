"""Beginnings of prompts whose state is there already."""

from __future__ import annotations

from collections import abc
from typing import NamedTuple, Protocol

from trigraph.runtime.execution.steps import StepResult, Steps
from trigraph.runtime.state.sequence import Sequence


class Resumed(NamedTuple):
    """Where a request starts."""

    sequence: Sequence
    """Holds a beginning of the prompt, or nothing."""
    row: StepResult | None = None
    """Of its last token; needed where that is the last one of the prompt."""
    checkpoints: frozenset[int] = frozenset()
    """Lengths of the prompt at which the sequence is worth keeping, where it does not hold so much already."""


class Prefix(Protocol):
    """Where the sequence of a request comes from, and what becomes of it."""

    def resume(self, prompt: list[int]) -> Resumed:
        """The sequence to go on from. Raises TrigraphError when there is no room for it."""

    def checkpoint(self, sequence: Sequence, row: StepResult) -> None:
        """Sees the sequence at a checkpoint, with the row of its last token; both change with the next step."""

    def finish(self, sequence: Sequence) -> None:
        """Takes the sequence back at the end of the request, also of one that failed."""


class NoPrefix:
    """A new sequence for each request; see Prefix."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def resume(self, prompt: list[int]) -> Resumed:
        """See Prefix."""
        return Resumed(self._steps.new_sequence())

    def checkpoint(self, sequence: Sequence, row: StepResult) -> None:
        """See Prefix: nothing to keep."""

    def finish(self, sequence: Sequence) -> None:
        """See Prefix."""
        self._steps.release(sequence)


def common_prefix(a: abc.Sequence[object], b: abc.Sequence[object]) -> int:
    """Length of the beginning that two texts, or lists of tokens, share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
