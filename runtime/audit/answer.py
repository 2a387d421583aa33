"""Answers of a server, and how two of them differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """A completion: its text, and its tokens with their log-probabilities where the server gives them."""

    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()

    def beginning(self, length: int) -> Answer:
        """The answer up to character `length` of its text, which must be the end of a token."""
        count = end = 0
        while count < len(self.tokens) and end < length:
            end += len(self.tokens[count])
            count += 1
        return Answer(self.text[:length], self.tokens[:count], self.logprobs[:count])


@dataclass(frozen=True)
class Difference:
    """How an answer differs from the one that was asked for alone."""

    text: bool
    """Whether the text differs; else log-probabilities alone do."""
    token: int | None
    """The first token that differs, from 0; None where the server names no tokens."""
    character: int | None
    """The first character that differs, from 0; None where texts are equal."""
    largest: float
    """Largest difference of the log-probabilities of equal tokens, in nats."""


def difference(expected: Answer, found: Answer) -> Difference | None:
    """How `found` differs from `expected`; None where it does not. Log-probabilities are compared up to the first token
    that differs, and only where both answers have them.
    """
    same = _common(expected.tokens, found.tokens)
    pairs = [*zip(expected.logprobs[:same], found.logprobs[:same], strict=False)]
    largest = max((abs(a - b) for a, b in pairs), default=0.0)
    if expected.text != found.text:
        token = same if expected.tokens and found.tokens else None
        return Difference(True, token, _common(expected.text, found.text), largest)
    if largest > 0:
        return Difference(False, next(i for i, (a, b) in enumerate(pairs) if a != b), None, largest)
    return None


def _common(one: str | tuple[str, ...], other: str | tuple[str, ...]) -> int:
    """The number of items that both begin with."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
