"""Steps of a chaotic fake model, and a check that a sequence is what it should be."""

import numpy as np

from support.fakes.model import FakeModel, chaotic, mostly_right
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence

VOCAB = 11


def make(draft: bool = True) -> FakeModel:
    logits = chaotic(VOCAB)
    return FakeModel(VOCAB, logits, mostly_right(logits) if draft else None)


def text(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length)]


def free(steps: Steps) -> tuple[int, int]:
    return steps.state.slots.free, steps.state.pages.free


def check(model: FakeModel, steps: Steps, sequence: Sequence, tokens: list[int]) -> None:
    """The next step of `sequence` computes what the text `tokens` asks for."""
    assert sequence.tokens == tokens
    result = steps.verify([sequence], [[0]])
    np.testing.assert_array_equal(result.logits[0], model.next_logits((*tokens, 0)))
