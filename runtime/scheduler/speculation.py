"""Speculative decoding: plan a round, run it, keep what each request's own sampler agrees with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import eq

from trigraph.runtime.drafting.choice import Candidates, DraftCost, Governor
from trigraph.runtime.execution.executor import Executor, SequencePlan
from trigraph.runtime.execution.results import RoundResult
from trigraph.runtime.requests.request import Request
from trigraph.runtime.requests.stats import Round
from trigraph.runtime.sampling.guide import LateError


def decode(executor: Executor, requests: list[Request], governor: Governor) -> Iterator[None]:
    """Continues the requests until all of them are complete, a round at a time. Raises the first one's error."""
    while unfinished := [request for request in requests if not request.finished]:
        decode_round(executor, unfinished, governor)
        for request in unfinished:
            if request.error is not None:
                raise request.error
        yield


def decode_round(executor: Executor, requests: list[Request], governor: Governor) -> None:
    """Drafts, one verify that all requests share, sampling: at least one token more for each, unless it fails.

    No token beyond the end of a completion is kept. What a request's own sampler, constraint or completion raises
    becomes its `error`, with the tokens before that kept. A step that fails raises, for all of them.
    """
    started = time.perf_counter()
    plan, candidates, asked = _plan(requests, executor.steps.max_pending - 1, governor)
    result = executor.run(plan)
    kept, row = [], 0
    for request, verified in zip(requests, result.tokens, strict=True):
        kept.append(_keep(request, verified, result, row))
        # The last token kept is the sampler's own. It is not in the state yet: the next round verifies it. The token
        # that this round verified first was such a one, so as many verified tokens are kept as new ones were sampled.
        executor.steps.keep(request.state, len(kept[-1]))
        row += len(verified)
    ended = time.perf_counter()
    drafting = sum(run.seconds for run in result.runs)
    for request, offered, most, verified, own in zip(requests, candidates, asked, result.tokens, kept, strict=True):
        drafts = [] if offered.forced else verified[1:]
        agreed = sum(map(eq, own, drafts))
        done = Round(own, len(drafts), agreed, drafting, ended - started, len(requests), ended)
        request.completion.rounds.append(done)
        if own and not offered.forced:
            request.draft_length.observe(offered, most, done)
    for run in result.runs:
        (governor.costs.block if run.block else governor.costs.draft).observe(run.rows, run.sequences, run.seconds)
    governor.costs.verify.observe(row, len(requests), ended - started - drafting)
    governor.observe(started, ended)


def _plan(
    requests: list[Request], longest: int, governor: Governor
) -> tuple[list[SequencePlan], list[Candidates], list[int]]:
    """Each request's part, the candidates that it chose from, and how many it asked for."""
    candidates = [_candidates(request, longest, governor.cost) for request in requests]
    asked, plan = governor.choose(candidates), []
    for request, offered, count in zip(requests, candidates, asked, strict=True):
        sampler, known = request.sampler, offered.tokens
        plan.append(
            SequencePlan(
                request.state,
                [request.token, *(known or [])[:count]],
                count if known is None else 0,
                sampler.guess,
                request.completion.options.draft_p_min or 0.0,
                sampler.parameters,
                sampler.guess_among,
                offered.block > 0,
            )
        )
    return plan, candidates, asked


def _candidates(request: Request, longest: int, cost: DraftCost) -> Candidates:
    """What a request may verify beside its next token: tokens that its constraint forces, else drafts."""
    room, forced = min(request.completion.left - 1, longest), list[int]()
    try:
        forced = request.sampler.forced(room)
    except Exception as error:
        request.error = error
    if forced:
        return Candidates([1.0] * len(forced), forced, len(forced), forced=True)
    return request.draft_length.candidates(request.state.tokens, request.token, room, cost)


def _keep(request: Request, verified: list[int], result: RoundResult, row: int) -> list[int]:
    """The accept rule: samples from row after row while the sampled token is the one that was verified next.

    The first token that differs, or that finishes the completion, is the last one; after the last draft comes one
    token more. `row` is that of `verified[0]`.
    """
    kept: list[int] = []
    if request.error is not None:
        return kept
    position = request.state.length + 1
    try:
        for i, draft in enumerate([*verified[1:], None]):
            drawn = -1 if result.drawn is None else result.drawn[row + i]
            token = request.sampler.pick(result.rows, row + i, position + i, drawn)
            finished = request.completion.push(token)
            request.token = token
            kept.append(token)
            if finished or token != draft:
                break
    except LateError:  # the row is computed again when the constraint has its answer
        pass
    except Exception as error:
        request.error = error
    return kept
