"""What steps and rounds give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class StepResult(NamedTuple):
    """Rows of a step, as views that the next step of the same graph overwrites.

    After a verify, a row for each token, sequence after sequence; after a prefill, one for each sequence's last token.
    """

    logits: NDArray[np.float32]  # [rows, vocabulary]
    tokens: NDArray[np.int64]  # [rows], the most likely next token, ties to the lowest id
    hidden: NDArray[np.float32]  # [rows, hidden], after the output norm

    def copy(self) -> StepResult:
        """This result, with its rows in memory of their own."""
        return StepResult(self.logits.copy(), self.tokens.copy(), self.hidden.copy())


class DraftResult(NamedTuple):
    """What the MTP head predicts for each sequence, as views that the next draft overwrites."""

    logits: NDArray[np.float32]  # [sequences, draft vocabulary]
    tokens: NDArray[np.int64]  # [sequences], the most likely ones
    probability: NDArray[np.float32]  # [sequences], of these tokens
    hidden: NDArray[np.float32]  # [sequences, hidden], of the head, for the next draft of the chain


class BlockResult(NamedTuple):
    """What a block drafter proposes in each row of each sequence's block, as views that the next draft overwrites."""

    candidates: NDArray[np.int64]  # [rows, C], tokens
    edges: NDArray[np.float32]  # [rows, E, C], their scores by the candidate before; E is 1 where that has no say


class DraftRun(NamedTuple):
    """One run of a draft graph."""

    rows: int
    sequences: int
    seconds: float
    block: bool = False
    """Whether it was of a block drafter."""


class RoundResult(NamedTuple):
    """What came of a round."""

    tokens: Sequence[list[int]]  # of each sequence, those that were verified: the known ones, then the head's drafts
    rows: StepResult  # of the verify
    runs: Sequence[DraftRun]
    drawn: Sequence[int] | None = None  # for each row the token that a device drew, -1 for none
