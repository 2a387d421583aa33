"""The promise of GatedDeltaNet: output and state of a token are a function of the tokens up to it, to the bit.

The oracle of the bits is plain decoding on the portable kernels; that of the mathematics, the NumPy reference.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.operators.gdn_cases import (
    SHAPES,
    K,
    Kernel,
    Rows,
    Shape,
    assert_close,
    empty_state,
    join,
    make_step,
    random_rows,
    random_weights,
)
from support.operators.run import LIBRARY, THREADS, same_bits
from trigraph.custom_ops.gated_delta_net.reference import State

SEQUENCES, SLOTS = 3, 7
_MOST_ROWS = 120 if LIBRARY == "cuda" else 600  # of a prefill; the emulator of a GPU is slow


@functools.cache
def kernels(isa: str, shape: Shape, threads: int) -> tuple[Kernel, Kernel]:
    """Of a verify and of a prefill."""
    weights, library = random_weights(np.random.default_rng(0), shape), "cuda" if isa == "cuda" else "cpu"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIGRAPH_ISA", "" if isa == "cuda" else isa)
        verify, prefill = (
            Kernel(shape, weights, commit=commit, threads=threads, library=library) for commit in (False, True)
        )
    return verify, prefill


_DECODED: dict[tuple[Shape, bytes], tuple[np.ndarray, State]] = {}


def decoded(shape: Shape, rows: Rows, last: Rows) -> tuple[np.ndarray, State]:
    """Outputs of rows that are decoded one by one from the start of a text, and the state after them."""
    fields = (rows.qkv, rows.z, rows.alpha, rows.beta, last.qkv, last.z, last.alpha, last.beta)
    key = shape, b"".join(field.tobytes() for field in fields)
    if key not in _DECODED:
        _DECODED[key] = decode(shape, rows, last)
    return _DECODED[key]


def decode(shape: Shape, rows: Rows, last: Rows) -> tuple[np.ndarray, State]:
    """What `decoded` gives, compared with the reference."""
    verify, prefill = kernels("portable", shape, 1)
    state, outputs = empty_state(shape, 1), []
    for t in range(len(rows)):
        y, state = verify(rows[t : t + 1], state, make_step([1], [t], [int(t > 0)], [0]))
        outputs.append(y)
    _, state = verify(last, state, make_step([1], [len(rows)], [1], [0]))  # commits the last one
    wanted = np.concatenate(outputs)
    exact, exact_state = prefill.reference(rows, empty_state(shape, 1), make_step([len(rows)], [0], [0], [0]))
    assert_close(wanted, exact, 2e-5)
    assert_close(state.state, exact_state.state, 2e-5)
    return wanted, state


@dataclass
class Text:
    """One sequence: what it has kept, and the rows of its last verify, which may be kept."""

    slot: int
    kept: list[Rows] = field(default_factory=list)
    outputs: list[np.ndarray] = field(default_factory=list)
    pending: Rows | None = None
    pending_y: np.ndarray | None = None
    length: int = 0

    def keep(self, rows: Rows | None, y: np.ndarray | None, count: int) -> int:
        if rows is not None and y is not None and count:
            self.kept.append(rows[:count])
            self.outputs.append(y[:count])
            self.length += count
        return count

    def accept(self, share: float) -> int:
        count = 0 if self.pending is None else round(share * len(self.pending))
        self.keep(self.pending, self.pending_y, count)
        self.pending = None
        return count


@dataclass(frozen=True)
class Turn:
    """What one sequence does in a round."""

    accepted: float  # share of the pending rows
    rows: float  # share of the most rows that a step takes
    moves: bool  # to another slot


turns = st.builds(Turn, st.floats(0, 1), st.floats(0, 1), st.booleans())
rounds = st.tuples(st.booleans(), st.lists(st.none() | turns, min_size=SEQUENCES, max_size=SEQUENCES))


def play(isa: str, shape: Shape, threads: int, plan: Sequence[tuple[bool, list[Turn | None]]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    verify, prefill = kernels(isa, shape, threads)
    state = empty_state(shape, SLOTS)
    texts = [Text(slot) for slot in range(SEQUENCES)]
    accept_all: list[Turn | None] = [Turn(1, 0, False)] * SEQUENCES
    for commit, chosen in [*plan, (False, accept_all)]:
        members = [(text, turn) for text, turn in zip(texts, chosen, strict=True) if turn is not None]
        if not members:
            continue
        most = _MOST_ROWS // SEQUENCES if commit else K
        accepted = [text.accept(turn.accepted) for text, turn in members]
        rows = [random_rows(rng, shape, 1 + round(turn.rows * (most - 1))) for _, turn in members]
        slots_in = [text.slot for text, _ in members]
        for text, turn in members:
            if turn.moves:
                text.slot = min(set(range(SLOTS)) - {t.slot for t in texts} - set(slots_in))
        step = make_step(
            [len(r) for r in rows], [t.length for t, _ in members], accepted, slots_in, [t.slot for t, _ in members]
        )
        y, state = (prefill if commit else verify)(join(rows), state, step)
        for (text, _), own, begin in zip(members, rows, step.cu_seqlens, strict=False):
            own_y = y[begin : begin + len(own)]
            if commit:
                text.keep(own, own_y, len(own))
            else:
                text.pending, text.pending_y = own, own_y
    for text in texts:
        if not text.kept or text.pending is None:
            continue
        kept = join(text.kept)
        wanted, after = decoded(shape, kept, text.pending[:1])
        assert same_bits(np.concatenate(text.outputs), wanted)
        assert same_bits(state.state[text.slot], after.state[0])
        assert same_bits(state.window[text.slot, :4], after.window[0, :4])
        assert same_bits(state.gates[text.slot], after.gates[0])


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    shape=st.sampled_from(SHAPES),
    threads=st.sampled_from(THREADS),
    plan=st.lists(rounds, min_size=1, max_size=12),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_history_has_the_bits_of_plain_decoding(
    isa: str, shape: Shape, threads: int, plan: list[tuple[bool, list[Turn | None]]], seed: int
) -> None:
    """Prefills and verifies in any mix, with any rejects and companions, in moving slots."""
    play(isa, shape, threads, plan, seed)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_prompt_in_pieces(isa: str, shape: Shape, threads: int) -> None:
    pieces = [1, 2, 31, 33, 64, 75] if LIBRARY == "cuda" else [1, 2, 31, 64, 65, 128, 309]
    most = _MOST_ROWS // SEQUENCES
    plan: list[tuple[bool, list[Turn | None]]] = [
        (True, [Turn(0, (n - 1) / (most - 1), False), None, None]) for n in pieces
    ]
    play(isa, shape, threads, plan, 1)
