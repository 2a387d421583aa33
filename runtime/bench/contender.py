"""The engines that are timed: each runs the same steps of the same file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trigraph.runtime.bench.sample import seconds
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.execution.results import DraftResult


class Contender(Protocol):
    """An engine with one sequence. A step returns the seconds until its results are there, in the engine's process."""

    name: str

    @property
    def drafters(self) -> Mapping[str, int]:
        """What drafts, "draft" (an MTP head) and "block" (a block drafter), each a method, with the rows of a run."""

    def reset(self) -> None:
        """Empties the sequence."""

    def prefill(self, tokens: Sequence[int]) -> float:
        """Appends tokens; the logits of the last one are computed."""

    def verify(self, tokens: Sequence[int]) -> float:
        """Appends 1 to 8 tokens; the logits of each one are computed."""

    def draft(self, token: int) -> float:
        """One step of the MTP head, which continues from its last one."""

    def close(self) -> None:
        """Ends a process of its own."""


OpenContender = Callable[[Path, int, int, int], Contender]
"""Opens a model file, given the threads, the context length and the most tokens of a prefill."""


class Trigraph:
    """Our own engine; see Contender."""

    name = "trigraph"

    def __init__(self, engine: Engine) -> None:
        self._steps = engine.steps
        self._sequence = self._steps.new_sequence()
        self._chain: DraftResult | None = None

    @property
    def drafters(self) -> Mapping[str, int]:
        block = self._steps.block
        return ({"draft": 1} if self._steps.can_draft else {}) | ({} if block is None else {"block": block.block})

    def reset(self) -> None:
        self._steps.release(self._sequence)
        self._sequence = self._steps.new_sequence()
        self._chain = None

    def prefill(self, tokens: Sequence[int]) -> float:
        return seconds(lambda: self._steps.prefill([self._sequence], [tokens]))

    def verify(self, tokens: Sequence[int]) -> float:
        """All tokens are kept, so that the next step commits them."""
        return seconds(lambda: self._verify(tokens))

    def draft(self, token: int) -> float:
        """The first one of a chain also fills the head's KV cache."""
        return seconds(lambda: self._draft(token))

    def block(self, token: int) -> float:
        """One run of the block drafter."""
        return seconds(lambda: self._steps.draft_block([self._sequence], [token]))

    def close(self) -> None:
        """The engine is its owner's."""

    def _verify(self, tokens: Sequence[int]) -> None:
        self._chain = None
        self._steps.verify([self._sequence], [tokens])
        self._steps.keep(self._sequence, len(tokens))

    def _draft(self, token: int) -> None:
        if self._chain is None:
            self._chain = self._steps.draft([self._sequence], [token])
        else:
            self._chain = self._steps.draft_more([self._sequence], self._chain.tokens.tolist(), self._chain.hidden)
