"""Runs the plan of a round: drafts of the MTP head, then the verify that all sequences share."""

from __future__ import annotations

import math
import time
from collections import abc
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.device.sampler import SamplingParameters
from trigraph.runtime.execution.results import DraftResult, DraftRun, RoundResult
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence


class SequencePlan(NamedTuple):
    """A sequence's part in a round."""

    sequence: Sequence
    tokens: list[int]
    """To be verified: the sequence's next one, and drafts that are known."""
    drafts: int
    """Most drafts that the head makes after a single token."""
    guess: abc.Callable[[DraftResult, int, int], int]
    """Chooses the draft at a position from a row of the head's logits: the arguments are result, row and position."""
    floor: float = 0.0
    """A draft less likely than this ends the chain and is not verified."""
    parameters: SamplingParameters | None = None
    """How a device may draw tokens and drafts; None where only the host can."""


Plan = abc.Sequence[SequencePlan]


class Executor(Protocol):
    """Runs rounds on the host or on a device; the tokens and rows are the same."""

    @property
    def steps(self) -> Steps:
        """The steps that it runs."""

    def run(self, plan: Plan) -> RoundResult:
        """Makes the drafts and verifies all tokens. Raises what a step raises."""


class HostExecutor:
    """Waits for each step, and chooses drafts from its logits."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def run(self, plan: Plan) -> RoundResult:
        """Makes the drafts and verifies all tokens."""
        drafts, runs = self.draft(plan)
        tokens = [[*part.tokens, *own] for part, own in zip(plan, drafts, strict=True)]
        return RoundResult(tokens, self.steps.verify([part.sequence for part in plan], tokens), runs)

    def draft(self, plan: Plan) -> tuple[list[list[int]], list[DraftRun]]:
        """The head's drafts of each sequence, and the runs that made them."""
        runs: list[DraftRun] = []
        drafts: list[list[int]] = [[] for _ in plan]
        chained = [i for i, part in enumerate(plan) if part.drafts]
        tokens = [plan[i].tokens[0] for i in chained]
        hidden: NDArray[np.float32] | None = None
        while chained:
            started = time.perf_counter()
            sequences, rows = [plan[i].sequence for i in chained], len(chained)
            if hidden is None:
                rows += sum(sequence.length - sequence.mtp_len for sequence in sequences)
                result = self.steps.draft(sequences, tokens)
            else:
                result = self.steps.draft_more(sequences, tokens, hidden)
            for row, i in enumerate(chained):
                token = _draft(plan[i], result, row, len(drafts[i]))
                drafts[i] += [] if token is None else [token]
            going = [
                row for row, i in enumerate(chained) if len(runs) + 1 == len(drafts[i]) < plan[i].drafts
            ]  # those whose chain was not ended
            runs.append(DraftRun(rows, len(chained), time.perf_counter() - started))
            hidden, chained = result.hidden[going], [chained[row] for row in going]
            tokens = [drafts[i][-1] for i in chained]
        return drafts, runs


def _draft(part: SequencePlan, result: DraftResult, row: int, depth: int) -> int | None:
    """The draft after `depth` others; None where it is too unlikely."""
    token = part.guess(result, row, part.sequence.length + 1 + depth)
    if part.floor:
        likely, probability = int(result.tokens[row]), float(result.probability[row])
        if token != likely:
            probability *= math.exp(float(result.logits[row][token]) - float(result.logits[row][likely]))
        if probability < part.floor:
            return None
    return token
