"""How far a request has come: data, which the decoding loop works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from trigraph.runtime.requests.draft_length import DraftLength
from trigraph.runtime.requests.stats import Round
from trigraph.runtime.sampling.sampling import Sampler
from trigraph.runtime.state.sequence import Sequence


class Completion(Protocol):
    """Takes the tokens of a request as they are chosen."""

    @property
    def left(self) -> int:
        """How many more tokens it may take: what the token limit and the context leave."""

    @property
    def finished(self) -> bool:
        """Whether it takes no more."""

    def push(self, token: int) -> bool:
        """Takes the next token; true when that finishes it."""


@dataclass(eq=False)
class Running:
    """One sequence in the decoding loop."""

    sequence: Sequence
    token: int
    """The next one of the sequence: sampled, but not in the state yet."""
    sampler: Sampler
    completion: Completion
    draft_length: DraftLength
    draft_p_min: float = 0.0
    """A draft less likely than this is not verified."""
    rounds: list[Round] = field(default_factory=list)
    """What the loop has done so far."""
    error: Exception | None = None
    """What ended it early: its own sampler, constraint or completion raised."""

    @property
    def finished(self) -> bool:
        """Whether no round takes it any more."""
        return self.error is not None or self.completion.finished
