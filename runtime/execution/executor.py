"""Runs the plan of a round: drafts of the model's drafter, then the verify that all sequences share."""

from __future__ import annotations

import math
import time
from collections import abc
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.device.sampler import SamplingParameters
from trigraph.runtime.execution.results import BlockResult, DraftResult, DraftRun, RoundResult
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence


def _best(ids: NDArray[np.int64], scores: NDArray[np.float32], position: int) -> int:
    return int(scores.argmax())


class SequencePlan(NamedTuple):
    """A sequence's part in a round."""

    sequence: Sequence
    tokens: list[int]
    """To be verified: the sequence's next one, and drafts that are known."""
    drafts: int
    """Most drafts that a drafter of the model makes after a single token."""
    guess: abc.Callable[[DraftResult, int, int], int]
    """Chooses the draft at a position from a row of the head's logits: the arguments are result, row and position."""
    floor: float = 0.0
    """A draft less likely than this ends the chain and is not verified."""
    parameters: SamplingParameters | None = None
    """How a device may draw tokens and drafts; None where only the host can."""
    guess_among: abc.Callable[[NDArray[np.int64], NDArray[np.float32], int], int] = _best
    """Chooses a draft by its place among a block drafter's candidates: the arguments are these, their scores, and the
    position."""
    block: bool = False
    """Whether the block drafter makes the drafts, not the MTP head."""


Plan = abc.Sequence[SequencePlan]


class Executor:
    """Runs rounds on the host: waits for each step, and chooses drafts from its logits."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def run(self, plan: Plan) -> RoundResult:
        """Makes the drafts and verifies all tokens. Raises what a step raises."""
        drafts, runs = self.draft(plan)
        tokens = [[*part.tokens, *own] for part, own in zip(plan, drafts, strict=True)]
        return RoundResult(tokens, self.steps.verify([part.sequence for part in plan], tokens), runs)

    def draft(self, plan: Plan) -> tuple[list[list[int]], list[DraftRun]]:
        """The drafts of each sequence, and the runs that made them."""
        drafts, runs = self._draft_blocks(plan)
        chains, chained = self._draft_chains([part._replace(drafts=0) if part.block else part for part in plan])
        return [own or chain for own, chain in zip(drafts, chains, strict=True)], [*runs, *chained]

    def _draft_chains(self, plan: Plan) -> tuple[list[list[int]], list[DraftRun]]:
        """The MTP head's drafts, chain by chain."""
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

    def _draft_blocks(self, plan: Plan) -> tuple[list[list[int]], list[DraftRun]]:
        """The block drafter's drafts, of all sequences in one run."""
        parts, block = [part for part in plan if part.drafts and part.block], self.steps.block
        if not parts or block is None:
            return [[] for _ in plan], []
        started = time.perf_counter()
        result = self.steps.draft_block([part.sequence for part in parts], [part.tokens[0] for part in parts])
        rows = iter(block.first_drafts(len(parts)))
        drafts = [_walk(part, result, next(rows)) if part.drafts and part.block else [] for part in plan]
        return drafts, [DraftRun(len(result.candidates), len(parts), time.perf_counter() - started, block=True)]


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


def _walk(part: SequencePlan, block: BlockResult, first: int) -> list[int]:
    """The drafts of a sequence whose first one is of row `first`: scores are those after what was taken before."""
    drafts: list[int] = []
    before = 0
    for row in range(first, first + part.drafts):
        ids, scores = block.candidates[row], block.edges[row, before % block.edges.shape[1]]
        before = part.guess_among(ids, scores, part.sequence.length + 1 + len(drafts))
        if part.floor:
            weights = np.exp(scores - scores.max())
            if weights[before] < part.floor * weights.sum():
                break
        drafts.append(int(ids[before]))
    return drafts
