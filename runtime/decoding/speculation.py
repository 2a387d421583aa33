"""Speculative decoding: draft, verify, keep what each request's own sampler agrees with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from trigraph.runtime.decoding.draft_length import Round
from trigraph.runtime.decoding.request import Request
from trigraph.runtime.execution.steps import StepResult, Steps


class Drafter(Protocol):
    """Guesses how sequences go on."""

    def propose(self, requests: list[Request], limits: list[int]) -> list[list[int]]:
        """For each request at most `limits[i]` tokens to follow its next one."""


def decode(steps: Steps, requests: list[Request], drafter: Drafter) -> Iterator[None]:
    """Continues the requests until all of them are complete, a round at a time: one verify that they share.

    No token beyond the end of a completion is kept. The last token of a round is never in the state: the next round
    verifies it. Tokens that a constraint forces take the place of drafts, and nothing is to be learnt from them.
    """
    while running := [request for request in requests if not request.completion.finished]:
        started = time.perf_counter()
        rooms = [min(request.completion.left, steps.max_pending) - 1 for request in running]
        forced = [request.sampler.forced(room) for request, room in zip(running, rooms, strict=True)]
        limits = [
            0 if tokens else request.draft_length.choose(room)
            for request, room, tokens in zip(running, rooms, forced, strict=True)
        ]
        proposed = drafter.propose(running, limits)
        drafts = [tokens or guess for tokens, guess in zip(forced, proposed, strict=True)]
        draft_seconds = time.perf_counter() - started
        verified = [[request.token, *draft] for request, draft in zip(running, drafts, strict=True)]
        result = steps.verify([request.sequence for request in running], verified)
        kept, row = [], 0
        for request, draft in zip(running, drafts, strict=True):
            kept.append(_keep(request, draft, result, row))
            steps.accept(request.sequence, len(kept[-1]))
            row += 1 + len(draft)
        seconds = time.perf_counter() - started
        for i, request in enumerate(running):
            agreed = sum(a == b for a, b in zip(kept[i], proposed[i], strict=False))
            request.rounds.append(Round(kept[i], len(proposed[i]), agreed, draft_seconds, seconds, len(running)))
            if not forced[i]:
                request.draft_length.observe(request.rounds[-1])
        yield


def _keep(request: Request, drafts: list[int], result: StepResult, row: int) -> list[int]:
    """Samples the request's tokens from rows `row` on, until one differs from its draft or finishes the completion."""
    kept: list[int] = []
    position = request.sequence.length + 1
    for i, draft in enumerate([*drafts, None]):
        request.token = request.sampler.pick(result, row + i, position + i)
        kept.append(request.token)
        if request.completion.push(request.token) or request.token != draft:
            break
    return kept


class MTPDrafter:
    """Drafts with the model's MTP head, until its probability of a token falls under the request's `draft_p_min`."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def propose(self, requests: list[Request], limits: list[int]) -> list[list[int]]:
        """See Drafter."""
        drafts: list[list[int]] = [[] for _ in requests]
        chained = [i for i, limit in enumerate(limits) if limit]
        if not chained:
            return drafts
        guess = self._steps.draft([requests[i].sequence for i in chained], [requests[i].token for i in chained])
        while True:
            rows = []
            for row, i in enumerate(chained):
                if guess.probability[row] >= requests[i].draft_p_min:
                    drafts[i].append(int(guess.tokens[row]))
                    if len(drafts[i]) < limits[i]:
                        rows.append(row)
            if not rows:
                return drafts
            if len(rows) < len(chained):
                guess, chained = guess.of(rows), [chained[row] for row in rows]
            guess = self._steps.draft_more([requests[i].sequence for i in chained], guess)
