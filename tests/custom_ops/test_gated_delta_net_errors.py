"""Steps and shapes that GatedDeltaNet refuses, and the smallest step that it takes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from support.operators.gdn_cases import (
    SMALL,
    Kernel,
    Rows,
    Shape,
    assert_same_state,
    empty_state,
    make_step,
    random_rows,
    random_state,
    random_weights,
)
from support.operators.run import same_bits
from trigraph.custom_ops.gated_delta_net.reference import State, Step, Weights
from trigraph.models.errors import TrigraphError

Change = Callable[[Step], Step]


def with_value(name: str, index: int, value: int) -> Change:
    def change(step: Step) -> Step:
        array = getattr(step, name).copy()
        array[index] = value
        return replace(step, **{name: array})

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_value("cu_seqlens", 0, 1), r"cu_seqlens\[0\] is 1, expected 0"),
        (with_value("cu_seqlens", 1, 0), "cu_seqlens goes from 0 to 0 at sequence 0"),
        (with_value("cu_seqlens", 1, 9), "cu_seqlens gives sequence 0 9 tokens, but a verify takes at most 8"),
        (with_value("cu_seqlens", 1, 11), "cu_seqlens gives sequence 0 11 tokens"),
        (with_value("cu_seqlens", 2, 9), "cu_seqlens ends at 9, but the step has 10 tokens"),
        (with_value("cu_seqlens", 2, 1 << 30), "cu_seqlens ends at 1073741824"),
        (with_value("past_lens", 1, -1), r"past_lens\[1\] is -1"),
        (with_value("past_lens", 0, 2), r"accepted\[0\] is 3, more than past_lens\[0\] = 2"),
        (with_value("accepted", 1, -1), r"accepted\[1\] is -1, expected 0 to 8"),
        (with_value("accepted", 1, 9), r"accepted\[1\] is 9, expected 0 to 8"),
        (with_value("accepted", 1, 5), r"accepted\[1\] is 5, but slot 2 holds 4 pending tokens"),
        (with_value("slots_in", 0, -1), r"slots_in\[0\] is -1, but there are 5 slots"),
        (with_value("slots_in", 1, 5), r"slots_in\[1\] is 5, but there are 5 slots"),
        (with_value("slots_out", 0, 5), r"slots_out\[0\] is 5, but there are 5 slots"),
        (with_value("slots_out", 1, -7), r"slots_out\[1\] is -7"),
        (with_value("slots_out", 1, 1), r"slots_out\[1\] is 1, which sequence 0 writes too"),
        (with_value("slots_in", 0, 2), r"slots_in\[0\] is 2, which sequence 1 writes in the same step"),
        (lambda s: replace(s, slots_in=s.slots_in[:1]), r"slots_in has shape \[1\], expected \[2\]"),
        (lambda s: replace(s, cu_seqlens=s.cu_seqlens[:2]), r"cu_seqlens has shape \[2\], expected \[3\]"),
    ],
)
def test_refused_steps(change: Change, message: str) -> None:
    rng = np.random.default_rng(10)
    kernel = Kernel(SMALL, random_weights(rng, SMALL), commit=False)
    state, rows = random_state(rng, SMALL, 5, pending=4), random_rows(rng, SMALL, 10)
    step = make_step([7, 3], [9, 9], [3, 4], [1, 2])
    kernel(rows, state, step)
    with pytest.raises(Exception, match=message):
        kernel(rows, state, change(step))
    if len(change(step).slots_in) == 2 and len(change(step).cu_seqlens) == 3:
        with pytest.raises(TrigraphError):
            kernel.reference(rows, state, change(step))


def test_a_prefill_past_its_rows_is_refused() -> None:
    rng = np.random.default_rng(14)
    kernel = Kernel(SMALL, random_weights(rng, SMALL), commit=True)
    state, rows = random_state(rng, SMALL, 3, pending=4), random_rows(rng, SMALL, 10)
    step = with_value("cu_seqlens", 1, 2**31 - 1)(make_step([7, 3], [9, 9], [3, 4], [1, 2]))
    with pytest.raises(Exception, match=r"cu_seqlens\[1\] is 2147483647, but the step has 10 tokens"):
        kernel(rows, state, step)


def test_accepted_after_a_prefill_is_refused() -> None:
    rng = np.random.default_rng(11)
    weights = random_weights(rng, SMALL)
    _, state = Kernel(SMALL, weights, commit=True)(
        random_rows(rng, SMALL, 40), empty_state(SMALL, 1), make_step([40], [0], [0], [0])
    )
    with pytest.raises(Exception, match=r"accepted\[0\] is 1, but slot 0 holds 0 pending tokens"):
        Kernel(SMALL, weights, commit=False)(random_rows(rng, SMALL, 1), state, make_step([1], [41], [1], [0]))


def test_a_step_after_one_whose_heads_differ_is_itself() -> None:
    """Of the heads of a key head, one has a pending token that another one has not: no mark of it is left."""
    rng = np.random.default_rng(15)
    kernel = Kernel(SMALL, random_weights(rng, SMALL), commit=False, aliased=False)
    state, rows, step = random_state(rng, SMALL, 1), random_rows(rng, SMALL, 2), make_step([2], [9], [1], [0])
    wanted, wanted_state = kernel(rows, state, step)
    torn = replace(state, gates=state.gates.copy())
    torn.gates.reshape(1, -1, 2, SMALL.v_heads)[0, 0, 1, 2] = -1
    kernel(rows, torn, step)
    actual, actual_state = kernel(rows, state, step)
    assert same_bits(actual, wanted)
    assert_same_state(actual_state, wanted_state)


def test_no_sequences() -> None:
    rng = np.random.default_rng(12)
    for commit in (False, True):
        kernel = Kernel(SMALL, random_weights(rng, SMALL), commit=commit, aliased=False)
        state = random_state(rng, SMALL, 2)
        y, present = kernel(random_rows(rng, SMALL, 0), state, make_step([], [], [], []))
        assert y.shape == (0, SMALL.v_heads * SMALL.dim)
        assert_same_state(present, state)


def test_refused_shapes() -> None:
    rng = np.random.default_rng(13)
    good = random_weights(rng, SMALL)
    state, rows, step = random_state(rng, SMALL, 2), random_rows(rng, SMALL, 2), make_step([2], [0], [0], [0])

    def refuse(
        message: str, rows: Rows = rows, weights: Weights = good, state: State = state, shape: Shape = SMALL
    ) -> None:
        kernel = Kernel(shape, good, commit=False, aliased=False)
        kernel.weights = weights
        with pytest.raises(Exception, match=message):
            kernel(rows, state, step)

    refuse("input z has shape", rows=replace(rows, z=rows.z[:, :-1]))
    refuse("input alpha has shape", rows=replace(rows, alpha=rows.alpha[:1]))
    refuse("input beta has shape", rows=replace(rows, beta=rows.beta[:, :-1]))
    refuse("input qkv has shape", rows=replace(rows, qkv=rows.qkv[:, :-1]))
    refuse("input conv has shape", weights=replace(good, conv=good.conv[:, :3]))
    refuse("input a has shape", weights=replace(good, a=good.a[:2]))
    refuse(
        "input norm has 40 values, but a head must be a multiple of 16",
        weights=replace(good, norm=np.ones(40, np.float32)),
    )
    refuse("input past_state has shape", state=replace(state, state=state.state[:1]))
    refuse("input past_window has shape", state=replace(state, window=state.window[:, :-1]))
    refuse("input past_gates has shape", state=replace(state, gates=state.gates[:, :, :-1]))
    refuse("multiple of k_heads = 3 value heads", shape=replace(SMALL, k_heads=3))
