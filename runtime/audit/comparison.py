"""How answers differ: the rules of docs/howto/audit.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trigraph.models.errors import quote
from trigraph.runtime.audit.answer import Answer

# Fields of answers that a server may leave out, and what reports call them.
PARTS = {
    "tokens": "tokens",
    "logprobs": "log-probabilities",
    "finish_reason": "finish_reason",
    "usage": "usage",
    "model": "model",
    "fingerprint": "system_fingerprint",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with an answer."""

    part: str
    """Which part of it."""
    what: str
    """What is wrong, in words that are equal for equal things."""
    detail: str = ""
    """The values."""


@dataclass(frozen=True)
class Difference:
    """How an answer differs from the one that was asked for alone, or from what any answer should be."""

    findings: tuple[Finding, ...]
    token: int | None = None
    """The first token that differs, from 0; None where none does, or the server names no tokens."""
    character: int | None = None
    """The first character that differs, from 0; None where texts are equal."""
    largest: float = 0.0
    """Largest difference of the log-probabilities of equal tokens, in nats."""

    def has(self, part: str) -> bool:
        """Whether a part has any finding."""
        return any(finding.part == part for finding in self.findings)


def difference(expected: Answer, found: Answer, most: int) -> Difference | None:
    """How `found` differs from `expected`, or is flawed by itself where `most` tokens were asked for; None where it
    does not.

    Where texts differ, tokens, ends and counts of tokens differ with them, and are not findings of their own.
    """
    same = _common(expected.tokens or (), found.tokens or ())
    pairs = [*zip((expected.logprobs or ())[:same], (found.logprobs or ())[:same], strict=False)]
    steps = [abs(a - b) if _valid(a) and _valid(b) else 0.0 for a, b in pairs if a is not None and b is not None]
    largest = max(steps, default=0.0)
    findings = [*flaws(found, most)]
    if found.text:
        findings += _absent(expected, found, "tokens", "logprobs")
    findings += [*_absent(expected, found, "finish_reason", "usage", "model", "fingerprint")]
    findings += _other(expected, found, "model", "fingerprint")
    token = character = None
    if expected.text != found.text:
        character = _common(expected.text, found.text)
        token = same if expected.tokens and found.tokens else None
        findings.append(Finding("text", "different", f"from character {character} on") if found.text else _EMPTY)
    else:
        findings += _of_equal_texts(expected, found, same, pairs, largest)
        token = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return Difference(tuple(findings), token, character, largest) if findings else None


_EMPTY = Finding("text", "empty")


def _of_equal_texts(
    expected: Answer, found: Answer, same: int, pairs: Sequence[tuple[float | None, float | None]], largest: float
) -> Iterator[Finding]:
    if expected.reasoning != found.reasoning:
        detail = f"{found.reasoning} characters are reasoning; alone {expected.reasoning}"
        yield Finding("text", "split differently", detail)
    if expected.tokens and found.tokens and expected.tokens != found.tokens:
        yield Finding("tokens", "different", f"from token {same} on")
    if largest > 0:
        yield Finding("log-probabilities", "different", f"by up to {largest:.2g}")
    if any((a is None) != (b is None) for a, b in pairs):
        yield Finding("log-probabilities", "partly missing")
    yield from _other(expected, found, "finish_reason", "usage")


def flaws(answer: Answer, most: int) -> Iterator[Finding]:
    """What is wrong with an answer of at most `most` tokens whatever others are."""
    if answer.choices > 1:
        yield Finding("choices", "several", f"{answer.choices}; 1 was requested")
    values = answer.logprobs or ()
    if (wrong := next((value for value in values if value is not None and not _valid(value)), None)) is not None:
        yield Finding("log-probabilities", "not log-probabilities", f"{wrong}")
    if answer.tokens and answer.logprobs and len(answer.tokens) != len(values):
        yield Finding("log-probabilities", "not one per token", f"{len(values)} for {len(answer.tokens)} tokens")
    if len(answer.tokens or ()) > most:
        yield Finding("tokens", "more than requested", f"{len(answer.tokens or ())} of at most {most}")
    completion = answer.usage[1] if answer.usage else None
    if completion is not None and completion > most:
        yield Finding("usage", "more than requested", f"{completion} tokens of at most {most}")
    if completion is not None and completion <= 0 and answer.text:
        yield Finding("usage", "no tokens for a text", f"{completion} tokens")


def usual(answers: Sequence[Answer]) -> Answer:
    """Which parts the answers of a server have, and which model and fingerprint most of them name. A fingerprint that
    most answers have for themselves says nothing, and is None.
    """
    first = Answer("")
    for part in PARTS:
        if values := Counter(v for each in answers if (v := getattr(each, part)) is not None):
            if part == "fingerprint" and len(values) > max(2, len(answers) // 2):
                continue
            first = replace(first, **{part: values.most_common(1)[0][0]})
    return first


def unlike_others(answer: Answer, common: Answer, most: int) -> Difference | None:
    """How an answer to another prompt is unlike the usual ones: by what it lacks, by who answers, by its flaws."""
    parts = [part for part in PARTS if answer.text or part not in ("tokens", "logprobs")]
    findings = [*flaws(answer, most), *_other(common, answer, "model", "fingerprint")]
    findings += [
        Finding(PARTS[part], "missing")
        for part in parts
        if getattr(answer, part) is None and getattr(common, part) is not None
    ]
    return Difference(tuple(findings)) if findings else None


def _absent(expected: Answer, found: Answer, *parts: str) -> Iterator[Finding]:
    for part in parts:
        one, other = getattr(expected, part), getattr(found, part)
        if (one is None) != (other is None):
            yield Finding(PARTS[part], "missing" if other is None else "only here")


def _other(expected: Answer, found: Answer, *parts: str) -> Iterator[Finding]:
    for part in parts:
        one, other = getattr(expected, part), getattr(found, part)
        if None not in (one, other) and one != other:
            yield Finding(PARTS[part], "different", f"{quote(other)}; alone {quote(one)}")


def _valid(value: float | None) -> bool:
    """Whether a number can be a logarithm of a probability; a little above 0 is rounding."""
    return value is not None and math.isfinite(value) and value < 0.001


def _common(one: str | tuple[str, ...], other: str | tuple[str, ...]) -> int:
    """The number of items that both begin with."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
