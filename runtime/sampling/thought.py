"""The thought that a reply begins with: where it ends, and how long it may be.

It sees the chosen tokens in order and nothing else, so the text is the same with and without speculation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from trigraph.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ThoughtTokens:
    """The tokens `<think>` and `</think>` of a vocabulary, and the line breaks that stand around the second."""

    begin: int
    before: tuple[int, ...]
    end: int
    after: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ThoughtTokens | None:
        """None for a vocabulary without such tokens."""
        begin, end = tokenizer.id_of("<think>"), tokenizer.id_of("</think>")
        if begin is None or end is None:
            return None
        return cls(
            begin,
            tuple(tokenizer.encode("\n", start=False)),
            end,
            tuple(tokenizer.encode("\n\n", start=False)),
        )

    def opened_by(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends with `<think>`, and a line break at most."""
        return list(prompt[-1:]) == [self.begin] or list(prompt[-1 - len(self.before) :]) == [self.begin, *self.before]


class Thought:
    """A reply's progress through its thought."""

    def __init__(
        self, tokens: ThoughtTokens, *, opened: bool, budget: int | None = None, stop_ids: frozenset[int] = frozenset()
    ) -> None:
        """`opened`: the prompt opened it; otherwise the reply does with its first token, or there is none.

        `budget`: most tokens of the thought, after which its end is forced. `stop_ids`: tokens that do not end the
        reply within the thought, but the thought, as something must come after it.
        """
        self.over = False
        self._tokens, self._left, self._stop_ids = tokens, budget, stop_ids
        self._open, self._ended = opened, False
        self._forced: deque[int] = deque()
        self._check_budget()

    @property
    def forced(self) -> list[int]:
        """The tokens that come next, even those that a bias bans."""
        return list(self._forced)

    def instead_of(self, token: int) -> int:
        """The token to take where `token` was chosen."""
        return self._tokens.end if self._open and token in self._stop_ids else token

    def advance(self, token: int) -> None:
        """Takes the token that was chosen."""
        expected = self._forced.popleft() if self._forced else None
        if self._open and token == self._tokens.end:
            self._open, self._ended = False, True
            if self._stop_ids and expected is None:
                # Models were trained on a blank line after a thought; what comes after it need not allow one.
                self._forced.extend(self._tokens.after)
        elif self._open:
            self._left = None if self._left is None else self._left - 1
        elif not self._ended:
            self._open = token == self._tokens.begin
            self._ended = not self._open
        self._check_budget()
        self.over = self._ended and not self._forced

    def _check_budget(self) -> None:
        if self._open and not self._forced and self._left is not None and self._left <= 0:
            self._forced = deque([*self._tokens.before, self._tokens.end, *self._tokens.after])
