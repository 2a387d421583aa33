"""Answers of a server."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Answer:
    """A completion as the server gave it. What it did not give is None."""

    text: str
    """Reasoning, and then the answer."""
    tokens: tuple[str, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None
    """One for each token; None for a token without."""
    finish_reason: str | None = None
    usage: tuple[int | None, int | None] | None = None
    """Tokens of the prompt and of the completion, as the server counts them."""
    model: str | None = None
    fingerprint: str | None = None
    reasoning: int = 0
    """Characters of the text that are reasoning."""
    choices: int = 1

    def beginning(self, length: int) -> Answer:
        """The answer up to character `length` of its text, which must be the end of a token."""
        tokens = self.tokens or ()
        count = end = 0
        while count < len(tokens) and end < length:
            end += len(tokens[count])
            count += 1
        return replace(
            self,
            text=self.text[:length],
            tokens=self.tokens and self.tokens[:count],
            logprobs=self.logprobs and self.logprobs[:count],
        )

    def followed_by(self, other: Answer) -> Answer:
        """This text and the other one, with all else as in the other."""
        return replace(
            other,
            text=self.text + other.text,
            tokens=(self.tokens or ()) + (other.tokens or ()) or None,
            logprobs=(self.logprobs or ()) + (other.logprobs or ()) or None,
        )

    def completed(self, whole: Answer) -> Answer:
        """The answer with the rest, the end and the usage of `whole`: equal to it where this is its beginning."""
        count = len(whole.beginning(len(self.text)).tokens or ())
        rest = replace(
            whole,
            text=whole.text[len(self.text) :],
            tokens=whole.tokens and whole.tokens[count:],
            logprobs=whole.logprobs and whole.logprobs[count:],
        )
        return replace(self.followed_by(rest), model=self.model, fingerprint=self.fingerprint)

    def where_given(self, other: Answer, *parts: str) -> Answer:
        """The answer with those of the named parts taken from `other` that only one of the two has."""
        return replace(
            self,
            **{part: mine for part in parts if None in (getattr(self, part), mine := getattr(other, part))},
        )
