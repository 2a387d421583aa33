"""Speculative decoding: draft, verify, keep what each request's own sampler agrees with."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from operator import attrgetter, eq
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.device.device import Drawer, Drawing
from trigraph.runtime.drafting.draft_length import Offer, Round
from trigraph.runtime.drafting.governor import Governor
from trigraph.runtime.execution.device_rounds import run_device_round
from trigraph.runtime.execution.results import DraftResult, DraftRun, RoundResult
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.requests.running import Running

_TOKENS = attrgetter("tokens")


class Proposal(NamedTuple):
    """The drafts of each request, and what they took."""

    drafts: list[list[int]]
    runs: Sequence[DraftRun] = ()


class Drafter(Protocol):
    """Guesses how sequences go on."""

    @property
    def by_head(self) -> bool:
        """Whether its drafts are what the MTP head's chain makes, so that a device may make them by itself."""

    def instead(self, running: list[Running], limits: list[int]) -> list[list[int]] | None:
        """What is verified in place of those that the device made; None: they are."""

    def propose(self, running: list[Running], limits: list[int]) -> Proposal:
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
    verifies it. What a request's own sampler, constraint or completion raises becomes its `error`, with the tokens
    before that kept. A step that fails raises, for all of them.
    """
    started = time.perf_counter()
    offers, asked = _plan(running, steps.max_pending - 1, governor)
    computed, drafted = _compute(steps, running, offers, asked, drafter)
    drafts, runs = computed.drafts, computed.runs
    kept, row = [], 0
    for request, draft in zip(running, drafts, strict=True):
        kept.append(_keep(request, draft, computed, row))
        steps.accept(request.sequence, len(kept[-1]))
        row += 1 + len(draft)
    ended = time.perf_counter()
    for request, offer, limit, draft, tokens in zip(running, offers, asked, drafts, kept, strict=True):
        guesses = [] if offer.forced else draft
        agreed = sum(map(eq, tokens, guesses))
        request.rounds.append(
            Round(tokens, len(guesses), agreed, drafted - started, ended - started, len(running), ended)
        )
        if not offer.forced:
            request.draft_length.observe(offer, limit, request.rounds[-1])
    for run in runs:
        governor.costs.draft.observe(*run)
    governor.costs.verify.observe(row, len(running), ended - drafted)
    busy = ended - drafted + sum(run.seconds for run in runs)
    governor.observe(sum(map(len, kept)), started, ended, busy)


def _plan(running: list[Running], longest: int, governor: Governor) -> tuple[list[Offer], list[int]]:
    """What each request could have verified, and the most drafts of each. Forced tokens take the place of drafts."""
    rooms = [min(request.completion.left - 1, longest) for request in running]
    forced = [_forced(request, room) for request, room in zip(running, rooms, strict=True)]
    offers = [
        Offer(len(tokens), [1.0] * len(tokens), tokens, forced=True)
        if tokens
        else request.draft_length.offer(request.sequence.tokens, request.token, room, governor.prices)
        for request, room, tokens in zip(running, rooms, forced, strict=True)
    ]
    return offers, governor.choose(offers)


def _compute(
    steps: Steps, running: list[Running], offers: list[Offer], asked: list[int], drafter: Drafter
) -> tuple[RoundResult, float]:
    """Drafts, and the verify of them; when that began."""
    sequences = [request.sequence for request in running]
    drawings = None if steps.drawer is None else _drawings(steps.drawer, running)
    if steps.drawer is not None and drawings is not None and drafter.by_head:
        limits = [0 if offer.tokens is not None else limit for offer, limit in zip(offers, asked, strict=True)]
        if any(limits) and all(map(_chains, running, limits, drawings)):
            known = [(offer.tokens or [])[:limit] for offer, limit in zip(offers, asked, strict=True)]
            tokens = [[request.token, *own] for request, own in zip(running, known, strict=True)]
            started = time.perf_counter()
            instead = drafter.instead(running, limits)
            computed = run_device_round(steps, steps.drawer, sequences, tokens, limits, drawings, instead)
            drafts = [own or guess for own, guess in zip(known, computed.drafts, strict=True)]
            return computed._replace(drafts=drafts), started + sum(run.seconds for run in computed.runs)
    drafts, runs = _propose(running, offers, asked, drafter)
    drafted = time.perf_counter()
    tokens = [[request.token, *draft] for request, draft in zip(running, drafts, strict=True)]
    if steps.drawer is None or drawings is None:
        return RoundResult(drafts, steps.verify(sequences, tokens), runs), drafted
    computed = run_device_round(steps, steps.drawer, sequences, tokens, [0] * len(running), drawings)
    return computed._replace(drafts=drafts, runs=runs), drafted


def _drawings(drawer: Drawer, running: list[Running]) -> list[Drawing | None]:
    """How the device draws each request's tokens; None where it cannot."""
    found = [request.sampler.drawing for request in running]
    return [how if how is not None and drawer.draws(how) else None for how in found]


def _chains(request: Running, limit: int, drawing: Drawing | None) -> bool:
    """Whether the device can make the request's drafts by itself: none ends the chain before its limit."""
    return not limit or (drawing is not None and not request.draft_p_min)


def _propose(running: list[Running], offers: list[Offer], asked: list[int], drafter: Drafter) -> Proposal:
    """The drafts that were offered, and the drafter's."""
    if not any(asked):
        return Proposal([[]] * len(running))
    if not any(map(_TOKENS, offers)):
        return drafter.propose(running, asked)
    limits = [0 if offer.tokens is not None else limit for offer, limit in zip(offers, asked, strict=True)]
    guesses, runs = drafter.propose(running, limits) if any(limits) else Proposal([[]] * len(running))
    drafts = [
        guess if offer.tokens is None else offer.tokens[:limit]
        for offer, limit, guess in zip(offers, asked, guesses, strict=True)
    ]
    return Proposal(drafts, runs)


def _forced(request: Running, room: int) -> list[int]:
    try:
        return request.sampler.forced(room)
    except Exception as error:
        request.error = error
        return []


def _keep(request: Running, drafts: list[int], computed: RoundResult, row: int) -> list[int]:
    """Samples the request's tokens from rows `row` on, until one differs from its draft or finishes the completion."""
    kept: list[int] = []
    if request.error is not None:
        return kept
    position = request.sequence.length + 1
    try:
        for i, draft in enumerate([*drafts, None]):
            drawn = -1 if computed.drawn is None else computed.drawn[row + i]
            token = request.sampler.pick(computed.result, row + i, position + i, drawn)
            finished = request.completion.push(token)
            request.token = token
            kept.append(token)
            if finished or token != draft:
                break
    except Exception as error:
        request.error = error
    return kept


class MTPDrafter:
    """Drafts with the model's MTP head what the requests' own samplers would draw if the head were right.

    A draft whose probability falls under the request's `draft_p_min` ends the chain.
    """

    by_head = True

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def instead(self, running: list[Running], limits: list[int]) -> list[list[int]] | None:
        """See Drafter."""
        return None

    def propose(self, running: list[Running], limits: list[int]) -> Proposal:
        """See Drafter."""
        runs: list[DraftRun] = []
        drafts: list[list[int]] = [[] for _ in running]
        chained = [i for i, limit in enumerate(limits) if limit]
        tokens = [running[i].token for i in chained]
        hidden: NDArray[np.float32] | None = None
        while chained:
            started = time.perf_counter()
            sequences = [running[i].sequence for i in chained]
            if hidden is None:
                behind = sum([sequence.length - sequence.mtp_len for sequence in sequences])
                guess = self._steps.draft(sequences, tokens)
            else:
                behind = 0
                guess = self._steps.draft_more(sequences, tokens, hidden)
            rows, tokens = [], []
            for row, i in enumerate(chained):
                token = _guess(running[i], guess, row, len(drafts[i]))
                if token is not None:
                    drafts[i].append(token)
                    if len(drafts[i]) < limits[i]:
                        rows.append(row)
                        tokens.append(token)
            runs.append(DraftRun(len(chained) + behind, len(chained), time.perf_counter() - started))
            if rows:
                hidden = guess.hidden if len(rows) == len(chained) else guess.hidden[rows]
            chained = [chained[row] for row in rows]
        return Proposal(drafts, runs)


def _guess(request: Running, drafted: DraftResult, row: int, depth: int) -> int | None:
    """The draft after `depth` others; None where it is too unlikely for the request."""
    token = request.sampler.guess(drafted, row, request.sequence.length + 1 + depth)
    if request.draft_p_min:
        likely, probability = int(drafted.tokens[row]), float(drafted.probability[row])
        if token != likely:
            logits = drafted.logits[row]
            probability *= math.exp(float(logits[token]) - float(logits[likely]))
        if probability < request.draft_p_min:
            return None
    return token
