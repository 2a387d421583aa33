"""Runs an audit: every case alone first, then under each condition."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.asking import Asking, NotPossibleError, OutOfTimeError
from trigraph.runtime.audit.client import Client
from trigraph.runtime.audit.comparison import Finding, difference, unlike_others, usual
from trigraph.runtime.audit.conditions import Condition, conditions
from trigraph.runtime.audit.connection import ServerError
from trigraph.runtime.audit.outcome import ALONE, Outcome
from trigraph.runtime.audit.plan import GREEDY, SEEDED, Case, Plan
from trigraph.runtime.audit.report import Report

_ALONE_SHARE = 0.2  # of the time


def audit(client: Client, plan: Plan, progress: Progress = silent) -> Report:
    """Asks `client` all that `plan` says. Raises TrigraphError when the server cannot be reached, or answers nothing.

    `progress` is told the condition, and how many of its cases are answered.
    """
    client.seconds = plan.timeout
    started = time.monotonic()
    client.find_out()
    asking, ending = Asking(client, plan), started + plan.seconds
    skipped = {} if client.seeds else {SEEDED.name: "the server takes no seed"}
    unread = {} if client.stream_usage else {"usage of streams": "the server gives none"}
    cases = [case for case in plan.cases if client.seeds or case.sampling is GREEDY]
    left = conditions(plan)
    asking.deadline = started + _ALONE_SHARE * (plan.seconds - sum(each.waits for each in left))
    alone = _alone(asking, cases, skipped, progress)
    if not asking.fingerprints:
        unread["system_fingerprint"] = "most answers have one of their own"
    outcomes: list[Outcome] = []
    while left:
        condition = left.pop(0)
        now, waits = time.monotonic(), sum(each.waits for each in (condition, *left))
        asking.deadline = now + (ending - now - waits) / (len(left) + 1) + condition.waits
        try:
            outcomes += _ask(asking, condition, [*asking.expected], progress)
        except (NotPossibleError, OutOfTimeError) as error:
            skipped[condition.name] = str(error)
    return Report(
        url=client.root,
        server=client.server,
        model=client.model or "",
        api=client.api,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.monotonic() - started,
        plan=plan,
        alone=alone,
        outcomes=outcomes,
        conditions=tuple(condition.name for condition in conditions(plan)),
        skipped=skipped,
        unread=unread,
    )


def _alone(asking: Asking, cases: Sequence[Case], skipped: dict[str, str], progress: Progress) -> list[Outcome]:
    """Asks each case alone, into `asking.expected`. A case without an answer is left out of all that follows."""
    found: dict[Case, Answer | ServerError] = {}
    deadline = asking.deadline
    for i, case in enumerate(cases):
        asking.deadline = deadline if i > 1 else math.inf  # two at least
        try:
            found[case] = asking.ask(case)
        except OutOfTimeError as error:
            skipped[f"{len(cases) - i} of {len(cases)} requests"] = str(error)
            break
        progress(ALONE, i + 1, len(cases))
    answers = {case: answer for case, answer in found.items() if isinstance(answer, Answer)}
    if not answers:
        last = next(reversed(found.values()))
        raise TrigraphError(f"{asking.client.root}: none of {len(found)} requests was answered ({last})")
    common = usual([*answers.values()])
    if common.fingerprint is None and any(answer.fingerprint for answer in answers.values()):
        asking.fingerprints = False
        answers = {case: replace(answer, fingerprint=None) for case, answer in answers.items()}
    for case, answer in answers.items():
        asking.expected[case] = replace(answer, model=common.model, fingerprint=common.fingerprint)
    return [
        _failed(ALONE, case, each)
        if isinstance(each, ServerError)
        else Outcome(ALONE, case, each, unlike_others(each, common, asking.plan.tokens))
        for case, each in (found | answers).items()
    ]


def _ask(asking: Asking, condition: Condition, cases: Sequence[Case], progress: Progress) -> list[Outcome]:
    """The outcomes of one condition. Raises NotPossibleError or OutOfTimeError where there are none."""
    asked = [case for case in cases if case.sampling is GREEDY or not condition.greedy_only]
    outcomes: list[Outcome] = []
    progress(condition.name, 0, len(asked))
    try:
        for case, answer in condition.ask(asking, asked):
            if isinstance(answer, ServerError):
                outcomes.append(_failed(condition.name, case, answer))
            else:
                differs = difference(asking.expected[case], answer, asking.plan.tokens)
                outcomes.append(Outcome(condition.name, case, answer, differs))
            progress(condition.name, min(len(outcomes), len(asked)), len(asked))
    except OutOfTimeError:
        if not outcomes:
            raise
    progress(condition.name, len(asked), len(asked))
    if not outcomes:
        raise NotPossibleError("the answers allow no case")
    return outcomes


def _failed(condition: str, case: Case, error: ServerError) -> Outcome:
    return Outcome(condition, case, None, None, Finding("answer", error.what, str(error)))
