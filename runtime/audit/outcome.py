"""What became of requests, one by one and in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.comparison import Difference, Finding
from trigraph.runtime.audit.plan import Case

ALONE = "alone"


@dataclass(frozen=True)
class Outcome:
    """The answer to a case under a condition, or why there is none."""

    condition: str
    case: Case
    answer: Answer | None
    difference: Difference | None
    failure: Finding | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that is wrong with it."""
        if self.failure is not None:
            return (self.failure,)
        return () if self.difference is None else self.difference.findings

    @property
    def kind(self) -> str:
        """In a word: failed, text, logprobs, parts, or same; of several, the first of these."""
        if self.failure is not None:
            return "failed"
        if self.difference is None:
            return "same"
        of_numbers = self.difference.largest > 0 or self.difference.has("log-probabilities")
        return "text" if self.difference.has("text") else "logprobs" if of_numbers else "parts"


@dataclass(frozen=True)
class Count:
    """Outcomes in numbers."""

    answers: int
    texts: int
    """Answers with another text."""
    logprobs: int
    """Answers with the same text, but other log-probabilities."""
    parts: int
    """Answers of which something else differs."""
    failures: int
    largest: float
    """Largest difference of a log-probability, in nats."""
    first_token: int | None
    """The earliest token that differs in any text, from 0; None where no text differs or the server names no tokens."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Count:
        """The count of some outcomes."""
        all_outcomes = [*outcomes]
        kinds = [each.kind for each in all_outcomes]
        differences = [each.difference for each in all_outcomes if each.difference is not None]
        tokens = [each.token for each in differences if each.has("text") and each.token is not None]
        return cls(
            answers=len(all_outcomes) - kinds.count("failed"),
            texts=kinds.count("text"),
            logprobs=kinds.count("logprobs"),
            parts=kinds.count("parts"),
            failures=kinds.count("failed"),
            largest=max((each.largest for each in differences), default=0.0),
            first_token=min(tokens, default=None),
        )

    @property
    def differing(self) -> int:
        """Answers that differ in anything, and failures."""
        return self.texts + self.logprobs + self.parts + self.failures

    @property
    def same(self) -> bool:
        """Whether every answer came, and was the same."""
        return not self.differing


@dataclass(frozen=True)
class Group:
    """Outcomes of a condition with which the same thing is wrong."""

    condition: str
    part: str
    what: str
    answers: int
    detail: str
    """The values, of the first one."""

    @classmethod
    def all_of(cls, outcomes: Iterable[Outcome]) -> list[Group]:
        """The groups of some outcomes, in their order."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for outcome in outcomes:
            for each in outcome.findings:
                groups.setdefault((outcome.condition, each.part, each.what), []).append(each.detail)
        return [cls(*key, len(details), details[0]) for key, details in groups.items()]
