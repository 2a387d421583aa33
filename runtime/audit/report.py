"""What an audit has found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trigraph.runtime.audit.answer import Answer, Difference
from trigraph.runtime.audit.plan import GREEDY, SEEDED, Case, Plan

if TYPE_CHECKING:
    from rich.table import Table

MODES = (GREEDY.name, SEEDED.name)


@dataclass(frozen=True)
class Outcome:
    """The answer to a case under a condition."""

    condition: str
    case: Case
    answer: Answer | None
    difference: Difference | None
    failure: str | None = None
    """Why there is no answer."""


@dataclass(frozen=True)
class Count:
    """Outcomes in numbers."""

    answers: int
    texts: int
    """Answers with another text."""
    logprobs: int
    """Answers with the same text, but other log-probabilities."""
    failures: int
    largest: float
    """Largest difference of a log-probability, in nats."""
    first_token: int | None
    """The earliest token that differs in any text, from 0; None where no text differs or the server names no tokens."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Count:
        """The count of some outcomes."""
        found = [*outcomes]
        differences = [each.difference for each in found if each.difference is not None]
        tokens = [each.token for each in differences if each.text and each.token is not None]
        return cls(
            answers=sum(each.failure is None for each in found),
            texts=sum(each.text for each in differences),
            logprobs=sum(not each.text for each in differences),
            failures=sum(each.failure is not None for each in found),
            largest=max((each.largest for each in differences), default=0.0),
            first_token=min(tokens, default=None),
        )

    @property
    def same(self) -> bool:
        """Whether every answer came, and was the same."""
        return not (self.texts or self.logprobs or self.failures)


@dataclass(frozen=True)
class Report:
    """All outcomes of an audit, and what was asked of whom."""

    url: str
    server: str
    model: str
    api: str
    logprobs: bool
    """Whether the server gives log-probabilities."""
    started: str
    seconds: float
    plan: Plan
    expected: Mapping[Case, Answer]
    """What each case was answered when it was asked alone."""
    outcomes: Sequence[Outcome]
    conditions: Sequence[str]
    skipped: Mapping[str, str]
    """Conditions and ways of sampling that were left out, and why."""

    @cached_property
    def total(self) -> Count:
        """The count of everything."""
        return Count.of(self.outcomes)

    def count(self, condition: str, mode: str) -> Count:
        """The count of one condition, greedy or seeded."""
        return Count.of(o for o in self.outcomes if o.condition == condition and o.case.sampling.name == mode)

    def distinct(self, case: Case) -> tuple[int, int]:
        """How many texts a case got, and how many sequences of log-probabilities."""
        answers = [self.expected[case], *(o.answer for o in self.outcomes if o.case == case and o.answer is not None)]
        return len({each.text for each in answers}), len({each.logprobs for each in answers})

    def left_out(self) -> dict[str, str]:
        """The conditions and ways of sampling that were not asked, and why."""
        asked = {outcome.condition for outcome in self.outcomes}
        return {name: "no time left" for name in self.conditions if name not in asked} | dict(self.skipped)

    def headline(self) -> str:
        """The result in a sentence."""
        total = self.total
        if total.same:
            return f"All {total.answers} answers are the same as alone."
        parts = [
            f"{total.texts} of {total.answers} answers have another text" if total.texts else "",
            f"{total.logprobs} the same text with other log-probabilities" if total.logprobs else "",
            f"{total.failures} requests failed" if total.failures else "",
        ]
        return "; ".join(filter(None, parts)) + "."

    def table(self) -> Table:
        """The counts of all conditions, for a terminal."""
        from rich.table import Table

        table = Table(title=f"{self.model or 'model'} at {self.url} ({self.api})", caption=self.headline())
        for name in ("asked", *(f"{mode}:\nother texts" for mode in MODES)):
            table.add_column(name, justify="left" if name == "asked" else "right", no_wrap=name == "asked")
        for name in ("only log-\nprobabilities", "largest\ndifference", "first token\nthat differs", "failed"):
            table.add_column(name, justify="right")
        for condition in self.conditions:
            counts = [self.count(condition, mode) for mode in MODES]
            both = Count.of(o for o in self.outcomes if o.condition == condition)
            if not both.answers and not both.failures:
                continue
            table.add_row(
                condition,
                *(f"{each.texts} of {each.answers}" if each.answers else "-" for each in counts),
                str(both.logprobs) if self.logprobs else "-",
                f"{both.largest:.2g}" if self.logprobs else "-",
                "-" if both.first_token is None else str(both.first_token),
                str(both.failures),
                style="" if both.same else "bold",
            )
        return table

    def as_json(self) -> dict[str, Any]:
        """Everything, answers that differ included."""
        return {
            "server": {"url": self.url, "name": self.server, "model": self.model, "api": self.api},
            "started": self.started,
            "seconds": round(self.seconds, 1),
            "tokens": self.plan.tokens,
            "logprobs": self.logprobs,
            "same": self.total.same,
            "total": vars(self.total),
            "conditions": {name: {mode: vars(self.count(name, mode)) for mode in MODES} for name in self.conditions},
            "left_out": self.left_out(),
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
                    "difference": None if outcome.difference is None else vars(outcome.difference),
                    "failure": outcome.failure,
                }
                for outcome in self.outcomes
                if outcome.difference is not None or outcome.failure is not None
            ],
        }
