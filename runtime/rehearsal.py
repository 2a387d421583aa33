"""What the rounds of a small model cost, and how often its drafts are right, seen when it is loaded.

The first run of a shape takes as long as several rounds of such a model. Here nobody waits for their tokens, and the
governor knows from the first round on what drafts cost and bring.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.costs import Costs
from trigraph.runtime.drafting.draft_length import Offer, Prices, Round
from trigraph.runtime.drafting.governor import Governor
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.requests.running import Running
from trigraph.runtime.sampling.sampling import Sampler, Sampling
from trigraph.runtime.speculation import Drafter, decode_round

SMALL_BYTES = 32 << 20
"""Weights of a small model: a step takes a millisecond at most."""
# Of each round: the head's, which get faster for 25 rounds; then more of them than are one run, and as many as n-grams
# may bring, each twice, for the first run of a shape allocates.
_BY_HEAD = (0, 0, 0, 1, 1, 1, 2, 2, 3, 3) * 4 + (4,) * 3
_GIVEN = tuple(sorted([*range(1, 8), *range(1, 8)]))
_MOST_SECONDS = 0.05  # on a slow or busy machine


def rehearse(steps: Steps, drafter: Drafter, costs: Costs, acceptance: Acceptance) -> None:
    """Runs rounds with no draft, with some of the head, and with some that are given; none without a head."""
    if not steps.can_draft:
        return
    sequence, rehearsed, governor = steps.new_sequence(), _Rehearsed(acceptance), Governor(costs)
    running = Running(sequence, 0, Sampler(Sampling(), []), rehearsed, rehearsed)
    ended = time.perf_counter() + _MOST_SECONDS
    try:
        for i, drafts in enumerate(_BY_HEAD + _GIVEN):
            rehearsed.drafts, rehearsed.given = min(drafts, steps.max_pending - 1), i >= len(_BY_HEAD)
            running.drafts = -1  # the last choice stands for no other round
            if sequence.length + steps.max_pending > steps.state.limits.context or time.perf_counter() > ended:
                break
            decode_round(steps, [running], drafter, governor)
        governor.choose([Offer(0, [0.5] * (steps.max_pending - 1))])
    finally:
        steps.release(sequence)


class _Rehearsed:
    """A completion that keeps nothing, and its drafts."""

    left, finished, drafts, given = 1 << 30, False, 0, False

    def __init__(self, acceptance: Acceptance) -> None:
        self._acceptance = acceptance

    def push(self, token: int) -> bool:
        """See Completion."""
        return False

    def offer(self, tokens: Sequence[int], token: int, room: int, prices: Prices) -> Offer:
        """See DraftLength."""
        return Offer(self.drafts, [1.0] * self.drafts, [*range(self.drafts)] if self.given else None)

    def observe(self, offer: Offer, asked: int, finished: Round) -> None:
        """See DraftLength."""
        if offer.tokens is None:
            self._acceptance.observe_head(finished.drafted, finished.accepted)

    def report(self) -> str:
        """See DraftLength."""
        return ""
