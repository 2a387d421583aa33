"""How many drafts each request of a batch takes: those that bring most tokens a second, for what rows cost here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import NamedTuple

from trigraph.runtime.drafting.costs import Costs

_MARGIN = 1.01  # how much faster than without them drafts must look
_KEPT = 8  # rounds for which a choice is kept
_CATCH_UP = 8  # rounds over which a request's first draft after others without may pay off
# Rows of a verify that takes as many as it likes. Few sizes are soon timed, and soon captured on a GPU.
_ROWS = [*range(1, 8), *(step << power for power in range(1, 10) for step in (4, 5, 6, 7))]


@dataclass
class Candidates:
    """Drafts that a request could have verified beside its next token."""

    chances: list[float] = field(default_factory=list)
    """How likely each draft and all those before it are right. It may take no more drafts than these."""
    tokens: list[int] | None = None
    """The drafts; None where the MTP head is to make them."""
    least: int = 0
    """Drafts that it takes at any price."""
    behind: int = 0
    """Tokens that the head has not seen yet, and sees before its first draft."""
    block: int = 0
    """Rows of the one run that makes all drafts; 0 where each takes a run of its own."""
    forced: bool = False
    """Whether a constraint forces the tokens, so that they are no drafts."""


class DraftCost(NamedTuple):
    """The cost of one draft more, in tokens that could be had in the same time."""

    row: float = 0.0
    """What its row in the verify costs."""
    draft: float = 0.0
    """What a request's share of a run of the MTP head costs, which makes one draft."""
    block: float = 0.0
    """What its share of a run of the block drafter costs, which makes all drafts."""


class Governor:
    """Chooses the drafts of each round. One for a model: requests come and go, what is known of the machine stays.

    What was not seen lately, a time or a chance, is judged with hope, and so tried where it could be the best.
    """

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.cost = DraftCost()
        """As of the last search."""
        self._lengths: list[int] = []  # the last choice
        self._left = self._keep = 0  # rounds for which it is kept: still, and in all
        self._ended = 0.0
        self._block = 0  # rows of a block

    def choose(self, candidates: Sequence[Candidates]) -> list[int]:
        """The most drafts of each request in the next round."""
        sequences, by_head = len(candidates), not any(c.tokens for c in candidates)
        same = by_head and sequences == len(self._lengths)
        if same and self._left:
            self._left -= 1
            return [min(max(n, c.least), len(c.chances)) for n, c in zip(self._lengths, candidates, strict=True)]
        least = [c.least for c in candidates]
        if not any(len(c.chances) > c.least for c in candidates):
            return least
        if not self.costs.verify.fresh(sequences + sum(least), sequences):
            return least  # a guess, or an old time, will not do for what drafts are held against
        lengths = self._best(candidates)
        if by_head:
            self._keep = min(2 * self._keep, _KEPT) if same else 1
            known = self.costs.verify.timed(sequences + sum(lengths), sequences)
            self._lengths, self._left = lengths, self._keep if known else 0
        return lengths

    def observe(self, started: float, ended: float) -> None:
        """Takes in when a round began and ended."""
        if self._ended:
            self.costs.observe_gap(started - self._ended)
        self._ended = ended

    def _best(self, candidates: Sequence[Candidates]) -> list[int]:
        """The lengths that bring most tokens a second.

        The most likely drafts come first, and the chances of a request only fall. So of n drafts the first n are best,
        but for draft runs, which all requests share that draft as deep: each greatest depth is looked at alone.
        """
        sequences, drafts = len(candidates), sorted(_drafts(candidates))
        required = sum(c.least for c in candidates)
        rows = [sequences + required, *(n for n in _ROWS if required < n - sequences <= len(drafts))]
        seconds = [*self.costs.round_seconds(sequences, rows).items()]
        seconds[0] = rows[0], seconds[0][1] / _MARGIN
        (run, row), (block_run, block_row) = (self.costs.draft_seconds(sequences, block=b) for b in (False, True))
        best, taken, all_drafts = 0.0, drafts[:0], drafts
        shallowest = max((draft.runs for draft in drafts[:required]), default=0)
        depths = range(max(draft.runs for draft in drafts), shallowest - 1, -1)
        blocks = {draft.block for draft in drafts} - {False}  # with the block drafter, and without
        without = [] if any(draft.block for draft in drafts[:required]) else [False]
        for block, deepest in product([*blocks, *without], depths):
            drafts = [draft for draft in all_drafts if draft.runs <= deepest and draft.block <= block]
            tokens = [*accumulate((-draft.unlikely for draft in drafts), initial=sequences)]
            cost = block_run * block + run * deepest
            rows_of = (draft.rows * (block_row if draft.block else row) for draft in drafts)
            drafting = [*accumulate(rows_of, initial=cost)]
            for n, verifying in seconds:
                if n - sequences > len(drafts):
                    break
                speed = tokens[n - sequences] / (verifying + drafting[n - sequences])
                if speed > best:
                    best, taken = speed, drafts[: n - sequences]
        (fewest, shortest), (most, longest) = seconds[0], seconds[-1]
        self._block = max(self._block, *(c.block for c in candidates))
        share = block_row * self._block + block_run / sequences
        verifying = best * (longest - shortest) / max(1, most - fewest)
        self.cost = DraftCost(verifying, best * (row + run / sequences), best * share)
        counts = Counter(draft.request for draft in taken)
        return [counts[i] for i in range(sequences)]


class _Draft(NamedTuple):
    """A draft; in order, those that are taken at any price come first, then the most likely ones."""

    optional: bool
    unlikely: float
    """Minus its chance."""
    runs: int
    """Draft runs that it takes; 0 where it is known."""
    request: int
    rows: float
    """Rows that draft runs compute for it."""
    block: bool
    """Whether the block drafter makes it."""


def _drafts(candidates: Sequence[Candidates]) -> Iterator[_Draft]:
    for i, c in enumerate(candidates):
        for number, chance in enumerate(c.chances):
            runs, rows, block = 0, 0.0, c.tokens is None and c.block > 0
            if block:
                rows = 0.0 if number else float(c.block)
            elif c.tokens is None:
                # The head computes drafts that are kept again, from their true hidden states.
                runs, rows = number + 1, 1 + chance + (0 if number else c.behind / _CATCH_UP)
            yield _Draft(number >= c.least, -chance, runs, i, rows, block)
