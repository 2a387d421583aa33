"""Rings of block drafters that see a window: a slot has one, and steps and blocks write that of no other sequence."""

import numpy as np
import pytest

from support.fakes.blocks import FakeBlocks, drafter_config
from support.fakes.model import BLOCK_KEY, FakeModel, chaotic
from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.state.sequence import Sequence

VOCAB = 50
LOGITS = chaotic(VOCAB)


def make(window: int = 5, block: int = 4, **sizes: int) -> tuple[Steps, FakeModel]:
    """Steps whose rings hold as little as they may; the model checks what each block reads."""
    model = FakeModel(VOCAB, LOGITS, None, FakeBlocks(LOGITS, drafter_config(block=block, window=window)))
    return model.steps(**sizes), model


def text(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length)]


def drafted(steps: Steps, sequence: Sequence) -> None:
    """Has a block drafted, and nothing verified."""
    steps.draft_block([sequence], [7])


@pytest.mark.parametrize("block", [4, 8, 13])
def test_texts_longer_than_the_ring(block: int) -> None:
    """Prompts in pieces, blocks, verifies of all lengths, whatever is kept of them."""
    steps, _ = make(block=block, context=300, chunk=200)
    assert steps.chunk == steps.state.ring == 4 + max(block, 8)
    sequence, random = steps.new_sequence(), np.random.default_rng(block)
    steps.prefill([sequence], [text(100)])
    while sequence.length < 250:
        drafted(steps, sequence)
        rows = text(int(random.integers(1, 9)), sequence.length)
        steps.verify([sequence], [rows])
        if random.random() < 0.9:
            steps.keep(sequence, int(random.integers(0, len(rows) + 1)))
        if random.random() < 0.1:
            steps.prefill([sequence], [text(int(random.integers(1, 40)), sequence.length)])


def test_forks_have_rings_of_their_own() -> None:
    """Also where both draft in one run, and where what is pending is kept by one of them alone."""
    steps, _ = make()
    parent = steps.new_sequence()
    steps.prefill([parent], [text(30)])
    steps.verify([parent], [text(8)])
    checkpoint, fork = steps.state.checkpoint(parent), steps.fork(parent)
    steps.keep(parent, 8)
    steps.keep(fork, 3)
    steps.draft_block([parent, fork, checkpoint], [1, 2, 3])
    free = steps.state.slots.free
    for _ in range(3):
        steps.verify([parent, fork], [text(8, 1), text(2, 2)])
        steps.draft_block([fork, parent], [1, 2])
    assert steps.state.slots.free >= free
    steps.verify([checkpoint], [[5]])
    steps.keep(checkpoint, 1)
    drafted(steps, checkpoint)
    for sequence in (parent, fork, checkpoint):
        steps.release(sequence)
    assert steps.state.slots.free == steps.state.slots.size


def test_a_slot_taken_for_a_block_is_given_back() -> None:
    steps, model = make()
    one = steps.new_sequence()
    steps.prefill([one], [text(9)])
    two = steps.fork(one)
    free = steps.state.slots.free
    drafted(steps, two)
    assert steps.state.slots.free == free - 1
    steps.release(one)
    drafted(steps, two)
    model.fail = True
    with pytest.raises(RuntimeError, match="a step failed"):
        steps.verify([two], [[1]])
    steps.release(two)
    assert steps.state.slots.free == steps.state.slots.size


def test_no_block_where_no_slot_is_free() -> None:
    steps, _ = make(sequences=1, slots=1)
    one = steps.new_sequence()
    steps.prefill([one], [text(9)])
    two = steps.fork(one)
    with pytest.raises(TrigraphError, match="all 1 state slots are in use"):
        drafted(steps, two)
    steps.release(one)
    drafted(steps, two)


def test_checkpoints_hold_no_rows_of_others() -> None:
    steps, _ = make()
    other = steps.new_sequence()
    steps.prefill([other], [text(40)])
    steps.release(other)
    sequence = steps.new_sequence()
    steps.prefill([sequence], [text(3)])
    ring = Checkpoint.of(steps.state, sequence).recurrent[BLOCK_KEY]
    assert ring[:3].any(axis=1).all() and not ring[3:].any()
