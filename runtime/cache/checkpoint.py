"""What a sequence needs to resume at a length, copied out of its state slot; tokens and KV pages are kept elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.runtime.execution.results import StepResult
from trigraph.runtime.state.sequence import Sequence
from trigraph.runtime.state.state import State


@dataclass(frozen=True)
class Checkpoint:
    """A sequence at one length: everything that recurrent layers cannot get back from a later one."""

    length: int
    """Committed tokens, at least 1."""
    to_commit: int
    """How many of the last committed tokens the recurrent state still holds apart."""
    mtp_len: int
    """KV length of the MTP head: leading entries computed from true hidden states."""
    hiddens: NDArray[np.float32]
    """[rows, hidden], of consecutive positions, up to the last one."""
    recurrent: Mapping[str, NDArray[Any]]
    """By name of the state tensor, one slot of it."""
    logits: NDArray[np.float32] | None = None
    """[vocabulary], of the token after a prompt that ends here."""

    @classmethod
    def of(
        cls,
        state: State,
        sequence: Sequence,
        logits: NDArray[np.float32] | None = None,
        guard: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Checkpoint:
        """A copy of what `sequence` holds now, without pending tokens.

        `guard` makes the contexts in which the state is read, a tensor in each. Raises TrigraphError when the sequence
        is empty, or a step of it failed.
        """
        with guard():
            if sequence.damaged or not sequence.length:
                raise TrigraphError(
                    "there is no state to save: the sequence is empty, was released, or a step of it failed"
                )
        recurrent: dict[str, NDArray[Any]] = {}
        for name, buffer in state.recurrent.items():
            with guard():
                recurrent[name] = buffer.current[sequence.slot].copy()
            if buffer in state.rings:
                recurrent[name][sequence.length :] = 0  # what stands there may be of another sequence
        return cls(
            sequence.length,
            sequence.to_commit,
            min(sequence.mtp_len, sequence.length),
            sequence.hiddens.span(sequence.hiddens.start, sequence.length).copy(),
            recurrent,
            None if logits is None else logits.copy(),
        )

    @property
    def row(self) -> StepResult | None:
        """What the step that ended here gave, where `logits` are known."""
        if self.logits is None:
            return None
        return StepResult(self.logits[np.newaxis], np.array([self.logits.argmax()], np.int64), self.hiddens[-1:])

    def restore(self, state: State, sequence: Sequence, tokens: list[int]) -> None:
        """Puts `sequence`, new or a fork of a shorter one, to this length of `tokens`, without KV."""
        slots = state.slots_out([sequence], [self.length])
        state.move([sequence], slots)
        for name, buffer in state.recurrent.items():
            buffer.current[sequence.slot] = self.recurrent[name]
        sequence.restored(tokens[: self.length], self.to_commit, self.mtp_len, self.hiddens)
