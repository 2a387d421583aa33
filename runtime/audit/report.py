"""What an audit has found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.comparison import PARTS
from trigraph.runtime.audit.outcome import ALONE, Count, Group, Outcome
from trigraph.runtime.audit.plan import GREEDY, SEEDED, Case, Plan

MODES = (GREEDY.name, SEEDED.name)
_LEAST_ANSWERED = 0.9  # of the requests alone
_FEWEST_PROMPTS = 4  # of which most may not be answered alike


@dataclass(frozen=True)
class Report:
    """All outcomes of an audit, and what was asked of whom."""

    url: str
    server: str
    model: str
    api: str
    started: str
    seconds: float
    plan: Plan
    alone: Sequence[Outcome]
    """What became of each case when it was asked alone."""
    outcomes: Sequence[Outcome]
    """The outcomes of all conditions that were compared with that."""
    conditions: Sequence[str]
    skipped: Mapping[str, str]
    """What was not asked, and why."""
    unread: Mapping[str, str]
    """Parts of answers that were not compared though some have them, and why."""

    @cached_property
    def everything(self) -> list[Outcome]:
        """The outcomes alone, too."""
        return [*self.alone, *self.outcomes]

    @cached_property
    def expected(self) -> dict[Case, Answer]:
        """What each case was answered when it was asked alone."""
        return {outcome.case: outcome.answer for outcome in self.alone if outcome.answer is not None}

    @cached_property
    def total(self) -> Count:
        """The count of all that was compared."""
        return Count.of(self.outcomes)

    @property
    def same(self) -> bool:
        """Whether nothing at all is wrong."""
        return not self.unaudited and not any(outcome.findings for outcome in self.everything)

    @property
    def logprobs(self) -> bool:
        """Whether the server gives log-probabilities."""
        return self._has("logprobs")

    @cached_property
    def unaudited(self) -> str:
        """Why the answers cannot tell whether the server has one answer to one text; "" where they can."""
        asked, useless = len(self.alone), self._useless()
        if sum(useless.values()) > round((1 - _LEAST_ANSWERED) * asked, 6):
            return "; ".join(f"{number} of {asked} requests alone {what}" for what, number in useless.items() if number)
        if not self.outcomes:
            return f"no answers were compared ({self.not_asked()[self.conditions[0]]})"
        return ""

    def _useless(self) -> dict[str, int]:
        """How many requests alone have no answer that could differ from another."""
        prompts: dict[object, set[str]] = defaultdict(set)
        for case, answer in self.expected.items():
            prompts[_said(answer)].add(case.prompt)
        asked = len({outcome.case.prompt for outcome in self.alone})
        alike = {said for said, some in prompts.items() if asked >= _FEWEST_PROMPTS and 2 * len(some) > asked}
        answers = self.expected.values()
        return {
            "failed": sum(outcome.failure is not None for outcome in self.alone),
            "were answered with an empty text": sum(not answer.text for answer in answers),
            "were answered as most other prompts were": sum(bool(a.text) and _said(a) in alike for a in answers),
        }

    def count(self, condition: str, mode: str | None = None) -> Count:
        """The count of one condition; greedy or seeded alone, if `mode` says so."""
        return Count.of(o for o in self.everything if o.condition == condition and mode in (None, o.case.sampling.name))

    def groups(self) -> list[Group]:
        """All that is wrong."""
        return Group.all_of(self.everything)

    def shown(self) -> list[str]:
        """The conditions that have outcomes."""
        asked = {outcome.condition for outcome in self.everything}
        return [name for name in (ALONE, *self.conditions) if name in asked]

    def distinct(self, case: Case) -> tuple[int, int]:
        """How many texts a case got, and how many sequences of log-probabilities."""
        answers = [o.answer for o in self.everything if o.case == case and o.answer is not None]
        return len({each.text for each in answers}), len({each.logprobs for each in answers})

    def not_asked(self) -> dict[str, str]:
        """Conditions and ways of sampling that were left out, and why."""
        return {name: "no time left" for name in self.conditions if name not in self.shown()} | dict(self.skipped)

    def not_compared(self) -> dict[str, str]:
        """Parts of answers that were not compared, and why."""
        missing = {name: "the server gives none" for part, name in PARTS.items() if not self._has(part)}
        return missing | dict(self.unread)

    def notes(self) -> list[str]:
        """Sentences on what the audit did not look at."""
        empty = sum(not answer.text for answer in self.expected.values())
        return [
            *(f"not asked: {name} ({why})" for name, why in self.not_asked().items()),
            *(f"not compared: {name} ({why})" for name, why in self.not_compared().items()),
            *([f"{empty} of {len(self.expected)} texts alone are empty"] if empty else []),
        ]

    def headline(self) -> str:
        """The result in a sentence."""
        if self.unaudited:
            return f"Not audited: {self.unaudited}."
        total, alone = self.total, self.count(ALONE)
        if self.same:
            return f"All {total.answers} answers are the same as alone."
        parts = [
            f"{total.texts} of {total.answers} answers have another text" if total.texts else "",
            f"{total.logprobs} have the same text with other log-probabilities" if total.logprobs else "",
            f"{total.parts} differ in another part" if total.parts else "",
            f"{total.failures} requests failed" if total.failures else "",
            f"{alone.differing} of {len(self.alone)} requests alone failed or are wrong" if not alone.same else "",
        ]
        return "; ".join(filter(None, parts)) + "."

    def _has(self, part: str) -> bool:
        return any(o.answer is not None and getattr(o.answer, part) is not None for o in self.everything)

    def as_json(self) -> dict[str, Any]:
        """Everything, answers that differ included."""
        return {
            "server": {"url": self.url, "name": self.server, "model": self.model, "api": self.api},
            "started": self.started,
            "seconds": round(self.seconds, 1),
            "tokens": self.plan.tokens,
            "logprobs": self.logprobs,
            "audited": not self.unaudited,
            "same": self.same,
            "headline": self.headline(),
            "total": vars(self.total),
            "conditions": {
                name: {mode: vars(self.count(name, mode)) for mode in MODES} for name in (ALONE, *self.conditions)
            },
            "findings": [vars(group) for group in self.groups()],
            "left_out": self.not_asked(),
            "not_compared": self.not_compared(),
            "cases": [
                {
                    "prompt": case.prompt,
                    "sampling": case.sampling.name,
                    "text": answer.text,
                    "distinct_texts": self.distinct(case)[0],
                    "distinct_logprobs": self.distinct(case)[1],
                }
                for case, answer in self.expected.items()
            ],
            "differences": [
                {
                    "condition": outcome.condition,
                    "prompt": outcome.case.prompt,
                    "sampling": outcome.case.sampling.name,
                    "text": None if outcome.answer is None else outcome.answer.text,
                    "findings": [vars(finding) for finding in outcome.findings],
                }
                for outcome in self.everything
                if outcome.findings
            ],
        }


def _said(answer: Answer) -> object:
    return answer.text, answer.tokens, answer.logprobs
