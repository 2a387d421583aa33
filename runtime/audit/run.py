"""Runs an audit: every case alone first, then under each condition."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.audit.answer import Answer, difference
from trigraph.runtime.audit.asking import Asking, NotPossibleError, OutOfTimeError
from trigraph.runtime.audit.client import Client, ServerError
from trigraph.runtime.audit.conditions import Condition, conditions
from trigraph.runtime.audit.plan import GREEDY, SEEDED, Case, Plan
from trigraph.runtime.audit.report import Outcome, Report

_ALONE_SHARE = 0.2  # of a limited time


def audit(client: Client, plan: Plan, progress: Progress = silent) -> Report:
    """Asks `client` all that `plan` says. Raises TrigraphError when the server cannot be reached, or answers nothing.

    `progress` is told the condition, and how many of its cases are answered.
    """
    client.find_out()
    started = time.monotonic()
    asking = Asking(client, plan)
    cases = [case for case in plan.cases if client.seeds or case.sampling is GREEDY]
    ending = None if plan.seconds is None else started + plan.seconds
    asking.deadline = None if plan.seconds is None else started + _ALONE_SHARE * plan.seconds
    _alone(asking, cases, progress)
    cases, outcomes = [*asking.expected], list[Outcome]()
    skipped = {} if client.seeds else {SEEDED.name: "the server takes no seed"}
    left = conditions(plan)
    while left:
        condition = left.pop(0)
        if ending is not None:
            asking.deadline = time.monotonic() + (ending - time.monotonic()) / (len(left) + 1)
        try:
            outcomes += _ask(asking, condition, cases, progress)
        except NotPossibleError as error:
            skipped[condition.name] = str(error)
    return Report(
        url=client.root,
        server=client.server,
        model=client.model or "",
        api=client.api,
        logprobs=client.logprobs,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.monotonic() - started,
        plan=plan,
        expected=asking.expected,
        outcomes=outcomes,
        conditions=tuple(condition.name for condition in conditions(plan)),
        skipped=skipped,
    )


def _alone(asking: Asking, cases: Sequence[Case], progress: Progress) -> None:
    """Asks each case alone, into `asking.expected`. A case without an answer is left out of all that follows."""
    failure: ServerError | None = None
    for i, case in enumerate(cases):
        try:
            answer = asking.ask(case)
        except OutOfTimeError:
            if len(asking.expected) > 1:
                break
            asking.deadline = None
            answer = asking.ask(case)
            asking.deadline = 0.0
        if isinstance(answer, Answer):
            asking.expected[case] = answer
        else:
            failure = answer
        progress("alone", i + 1, len(cases))
    if not asking.expected:
        raise TrigraphError(f"{asking.client.root}: none of {len(cases)} prompts was answered ({failure})")


def _ask(asking: Asking, condition: Condition, cases: Sequence[Case], progress: Progress) -> list[Outcome]:
    """The outcomes of one condition."""
    asked = [case for case in cases if case.sampling is GREEDY or not condition.greedy_only]
    outcomes: list[Outcome] = []
    progress(condition.name, 0, len(asked))
    try:
        for case, answer in condition.ask(asking, asked):
            if isinstance(answer, ServerError):
                outcomes.append(Outcome(condition.name, case, None, None, str(answer)))
            else:
                found = difference(asking.expected[case], answer)
                outcomes.append(Outcome(condition.name, case, answer, found))
            progress(condition.name, min(len(outcomes), len(asked)), len(asked))
    except OutOfTimeError:
        pass
    progress(condition.name, len(asked), len(asked))
    return outcomes
