"""Speculative decoding: draft, verify, keep what each request's own sampler agrees with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from trigraph.runtime.decoding.draft_length import Round
from trigraph.runtime.decoding.governor import Governor
from trigraph.runtime.decoding.running import Running
from trigraph.runtime.execution.steps import StepResult, Steps


class Drafter(Protocol):
    """Guesses how sequences go on."""

    def propose(self, running: list[Running], limits: list[int]) -> list[list[int]]:
        """For each request at most `limits[i]` tokens to follow its next one."""


def decode(steps: Steps, running: list[Running], drafter: Drafter, governor: Governor) -> Iterator[None]:
    """Continues the requests until all of them are complete, a round at a time. Raises the first one's error."""
    while unfinished := [request for request in running if not request.finished]:
        decode_round(steps, unfinished, drafter, governor)
        for request in unfinished:
            if request.error is not None:
                raise request.error
        yield


def decode_round(steps: Steps, running: list[Running], drafter: Drafter, governor: Governor) -> None:
    """Drafts, one verify that all requests share, sampling: at least one token more for each, unless it fails.

    No token beyond the end of a completion is kept. The last token of a round is never in the state: the next round
    verifies it. Tokens that a constraint forces take the place of drafts, and nothing is to be learnt from them. What
    a request's own sampler, constraint or completion raises becomes its `error`, with the tokens before that kept. A
    step that fails raises, for all of them.
    """
    started = time.perf_counter()
    rooms = [min(request.completion.left, steps.max_pending) - 1 for request in running]
    forced = [_forced(request, room) for request, room in zip(running, rooms, strict=True)]
    rooms = [0 if tokens else room for room, tokens in zip(rooms, forced, strict=True)]
    proposed = drafter.propose(running, governor.choose(running, rooms))
    drafts = [tokens or guess for tokens, guess in zip(forced, proposed, strict=True)]
    draft_seconds = time.perf_counter() - started
    verified = [[request.token, *draft] for request, draft in zip(running, drafts, strict=True)]
    result = steps.verify([request.sequence for request in running], verified)
    kept, row = [], 0
    for request, draft in zip(running, drafts, strict=True):
        kept.append(_keep(request, draft, result, row))
        steps.accept(request.sequence, len(kept[-1]))
        row += 1 + len(draft)
    ended = time.perf_counter()
    for i, request in enumerate(running):
        agreed = sum(a == b for a, b in zip(kept[i], proposed[i], strict=False))
        request.rounds.append(
            Round(kept[i], len(proposed[i]), agreed, draft_seconds, ended - started, len(running), ended)
        )
    governor.observe([request for request, tokens in zip(running, forced, strict=True) if not tokens])


def _forced(request: Running, room: int) -> list[int]:
    try:
        return request.sampler.forced(room)
    except Exception as error:
        request.error = error
        return []


def _keep(request: Running, drafts: list[int], result: StepResult, row: int) -> list[int]:
    """Samples the request's tokens from rows `row` on, until one differs from its draft or finishes the completion."""
    kept: list[int] = []
    if request.error is not None:
        return kept
    position = request.sequence.length + 1
    try:
        for i, draft in enumerate([*drafts, None]):
            token = request.sampler.pick(result, row + i, position + i)
            finished = request.completion.push(token)
            request.token = token
            kept.append(token)
            if finished or token != draft:
                break
    except Exception as error:
        request.error = error
    return kept


class MTPDrafter:
    """Drafts with the model's MTP head, until its probability of a token falls under the request's `draft_p_min`."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def propose(self, running: list[Running], limits: list[int]) -> list[list[int]]:
        """See Drafter."""
        drafts: list[list[int]] = [[] for _ in running]
        chained = [i for i, limit in enumerate(limits) if limit]
        if not chained:
            return drafts
        guess = self._steps.draft([running[i].sequence for i in chained], [running[i].token for i in chained])
        while True:
            rows = []
            for row, i in enumerate(chained):
                if guess.probability[row] >= running[i].draft_p_min:
                    drafts[i].append(int(guess.tokens[row]))
                    if len(drafts[i]) < limits[i]:
                        rows.append(row)
            if not rows:
                return drafts
            if len(rows) < len(chained):
                guess, chained = guess.of(rows), [chained[row] for row in rows]
            guess = self._steps.draft_more([running[i].sequence for i in chained], guess)
