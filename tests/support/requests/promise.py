"""One text, one answer: what a sequence holds, as bits, and the same computed in the plainest way."""

from functools import cached_property

import numpy as np

from trigraph.runtime import Engine
from trigraph.runtime.execution.results import DraftResult, StepResult
from trigraph.runtime.state.sequence import Sequence

CHAINED = 2  # drafts after the first one of a chain

Row = tuple[bytes, bytes, int]
"""Logits, hidden row and most likely token at one position."""


def row_bits(result: StepResult) -> list[Row]:
    return [
        (result.logits[i].tobytes(), result.hidden[i].tobytes(), int(result.tokens[i]))
        for i in range(len(result.tokens))
    ]


def draft_bits(result: DraftResult) -> list[tuple[bytes, bytes, int]]:
    """Of each sequence."""
    return [
        (result.probability[i].tobytes(), result.hidden[i].tobytes(), int(result.tokens[i]))
        for i in range(len(result.tokens))
    ]


def draft_chains(engine: Engine, sequences: list[Sequence], tokens: list[int]) -> list[list[tuple[bytes, bytes, int]]]:
    """A block of the block drafter, a draft of the MTP head and `CHAINED` more, as far as they are there."""
    found = []
    if (block := engine.steps.block) is not None:
        result = engine.steps.draft_block(sequences, tokens)
        blocks = [slice(i * block.block, (i + 1) * block.block) for i in range(len(sequences))]
        found.append([(result.candidates[rows].tobytes(), result.edges[rows].tobytes(), 0) for rows in blocks])
    if not engine.steps.can_draft:
        return [list(chain) for chain in zip(*found, strict=True)]
    guess = engine.steps.draft(sequences, tokens)
    found.append(draft_bits(guess))
    for _ in range(CHAINED):
        guess = engine.steps.draft_more(sequences, guess.tokens.tolist(), guess.hidden)
        found.append(draft_bits(guess))
    return [list(chain) for chain in zip(*found, strict=True)]


def sequence_bits(engine: Engine, sequence: Sequence) -> dict[str, object]:
    """All that a sequence holds or leads to: state and KV of committed positions, the next row, and drafts."""
    steps = engine.steps
    drafts = draft_chains(engine, [sequence], [3]) if steps.can_draft or steps.block else []
    found: dict[str, object] = {"row": row_bits(steps.verify([sequence], [[1]])), "drafts": drafts}  # commits
    steps.keep(sequence, 0)
    ring = steps.state.ring
    first = max(0, sequence.length + steps.state.limits.reach - ring)  # a round writes over those before
    places = np.arange(first, sequence.length)
    for name, tensor in steps.state.tensors.items():
        if name.startswith("draft.") and name in steps.state.recurrent:
            found[name] = tensor[sequence.slot][places % ring].tobytes()
        elif name.startswith(("kv.", "mtp.", "draft.", "index.")):
            pages = np.stack([tensor[int(page)] for page in sequence.pages[: sequence.page_count]])
            found[name] = pages.reshape(-1, *pages.shape[2:])[: sequence.length].tobytes()
        elif name.endswith(".state"):
            found[name] = tensor[sequence.slot].tobytes()
        elif name.endswith(".window"):
            found[name] = tensor[sequence.slot][: tensor.shape[1] - steps.max_pending].tobytes()
    return found


class PlainText:
    """A text of random tokens, computed alone: rows by decoding token by token, the rest by one prefill."""

    def __init__(self, engine: Engine, length: int, seed: int) -> None:
        self._engine = engine
        self.tokens = [int(token) for token in np.random.default_rng(seed).integers(0, engine.steps.vocab, length)]
        self._known: dict[int, dict[str, object]] = {}
        self._drafts: dict[int, list[tuple[bytes, bytes, int]]] = {}

    @cached_property
    def rows(self) -> list[Row]:
        """At each position."""
        steps, found = self._engine.steps, []
        sequence = steps.new_sequence()
        for token in self.tokens:
            found += row_bits(steps.verify([sequence], [[token]]))
            steps.keep(sequence, 1)
        steps.release(sequence)
        return found

    def bits(self, length: int) -> dict[str, object]:
        """`sequence_bits` of the first `length` tokens, prefilled in one piece."""
        if length not in self._known:
            sequence = self._prefilled(length)
            self._known[length] = sequence_bits(self._engine, sequence)
            self._engine.steps.release(sequence)
        return self._known[length]

    def drafts(self, length: int) -> list[tuple[bytes, bytes, int]]:
        """The chain after the first `length` tokens and the next one, behind one prefill."""
        if length not in self._drafts:
            sequence = self._prefilled(length)
            (self._drafts[length],) = draft_chains(self._engine, [sequence], [self.tokens[length]])
            self._engine.steps.release(sequence)
        return self._drafts[length]

    def _prefilled(self, length: int) -> Sequence:
        sequence = self._engine.steps.new_sequence()
        self._engine.steps.prefill([sequence], [self.tokens[:length]])
        return sequence
