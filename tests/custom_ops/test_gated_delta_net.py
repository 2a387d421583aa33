"""GatedDeltaNet against its reference and against transformers; bits of batches and of separate buffers."""

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.operators.gdn_cases import (
    EPS,
    SHAPES,
    SMALL,
    K,
    Kernel,
    Rows,
    Shape,
    assert_close,
    assert_same_state,
    empty_state,
    join,
    make_step,
    random_rows,
    random_state,
    random_weights,
)
from support.operators.run import same_bits
from trigraph.custom_ops.gated_delta_net.reference import State


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_reference(isa: str, shape: Shape, commit: bool) -> None:
    rng = np.random.default_rng(1)
    kernel = Kernel(shape, random_weights(rng, shape), commit=commit)
    for lengths in ([1], [3, 1, 8], [63], [65, 1, 32]) if commit else ([1], [3, 1, 8]):
        state = random_state(rng, shape, 5)
        n = len(lengths)
        step = make_step(lengths, [9, 0, 700][:n], [K, 0, 2][:n], [2, 4, 1][:n], [2, 0, 3][:n])
        rows = random_rows(rng, shape, sum(lengths))
        y, present = kernel(rows, state, step)
        wanted, wanted_state = kernel.reference(rows, state, step)
        assert_close(y, wanted, 1e-5)
        assert_close(present.state, wanted_state.state, 1e-5)
        assert same_bits(present.window, wanted_state.window)
        assert_close(present.gates, wanted_state.gates, 1e-6)


def test_start_of_a_text_reads_nothing() -> None:
    rng = np.random.default_rng(2)
    for commit in (False, True):
        kernel = Kernel(SMALL, random_weights(rng, SMALL), commit=commit)
        rows, step = random_rows(rng, SMALL, 5), make_step([5], [0], [0], [1])
        state = empty_state(SMALL, 3)
        y, present = kernel(rows, state, step)
        wanted, wanted_state = kernel.reference(rows, state, step)
        assert_close(y, wanted)
        assert_close(present.state[1], wanted_state.state[1])
        assert_close(present.gates[1], wanted_state.gates[1])
        assert same_bits(present.window[1, :3], wanted_state.window[1, :3])


def test_extreme_gates() -> None:
    """Gates from fully open to fully shut, and a softplus that must be exact at both ends."""
    rng = np.random.default_rng(3)
    shape = Shape(1, 20, 32)
    weights = replace(random_weights(rng, shape), dt_bias=np.zeros(20, np.float32))
    kernel, prefill = Kernel(shape, weights, commit=False), Kernel(shape, weights, commit=True)
    values = np.array([-100, -87, -30, -15, -8, -1, -1e-3, 0, 1e-3, 1, 5, 8, 15, 19.9, 20.1, 25, 50, 88, 100, 1e4])
    rows = replace(random_rows(rng, shape, 5), alpha=np.tile(values, (5, 1)).astype(np.float32))
    state = random_state(rng, shape, 1)
    step = make_step([5], [8], [3], [0])
    y, present = kernel(rows, state, step)
    wanted, wanted_state = kernel.reference(rows, state, step)
    assert_close(y, wanted)
    wanted_gates = wanted_state.gates[0, :5].astype(np.float64)
    assert (np.abs(present.gates[0, :5] - wanted_gates) <= 5e-7 * np.abs(wanted_gates) + 1e-37).all()

    rows = random_rows(rng, shape, 64)
    rows.alpha[:] = rng.choice(values[6:], rows.alpha.shape)  # strong and weak decays side by side in one chunk
    y, present = prefill(rows, state, make_step([64], [8], [3], [0]))
    wanted, wanted_state = prefill.reference(rows, state, make_step([64], [8], [3], [0]))
    assert_close(y, wanted, 1e-5)
    assert_close(present.state, wanted_state.state, 1e-5)


@pytest.mark.parametrize("commit", [False, True])
def test_separate_buffers_leave_the_bits_of_one_buffer(commit: bool) -> None:
    rng = np.random.default_rng(5)
    weights = random_weights(rng, SMALL)
    one, two = (Kernel(SMALL, weights, commit=commit, aliased=aliased) for aliased in (True, False))
    state, rows = random_state(rng, SMALL, 7), random_rows(rng, SMALL, 8)
    for accepted in ([0, 0, 0, 0], [3, 8, 0, 0], [0, 1, 5, 0]):
        # slot 1 is read by two sequences, slot 3 is moved, slot 5 starts a text, slots 0 and 1 stay
        step = make_step([2, 1, 4, 1], [9, 9, 9, 0], accepted, [1, 1, 2, 3], [3, 4, 2, 5])
        y1, state1 = one(rows, state, step)
        y2, state2 = two(rows, state, step)
        assert same_bits(y1, y2)
        assert_same_state(state1, state2)
        for slot in (0, 1, 6):
            assert same_bits(state1.state[slot], state.state[slot])
            assert same_bits(state1.window[slot], state.window[slot])


def decode(kernel: Kernel, rows: Rows, state: State, past_len: int, accepted: int) -> tuple[np.ndarray, State]:
    """Plain decoding in slot 0: one token a step, each step keeps the token before."""
    outputs = []
    for t in range(len(rows)):
        y, state = kernel(rows[t : t + 1], state, make_step([1], [past_len + t], [accepted if t == 0 else 1], [0]))
        outputs.append(y)
    return np.concatenate(outputs), state


@pytest.mark.parametrize("commit", [False, True])
def test_companions_and_threads_leave_a_sequence_as_it_is_alone(isa: str, commit: bool) -> None:
    rng = np.random.default_rng(8)
    weights = random_weights(rng, SMALL)
    one, two = (Kernel(SMALL, weights, commit=commit, threads=n) for n in (1, 2))
    state = random_state(rng, SMALL, 6)
    lengths, accepted, past_lens = ([70, 1, 33, 5] if commit else [8, 1, 3, 5]), [4, 0, 8, 1], [30, 0, 8, 1]
    rows = [random_rows(rng, SMALL, n) for n in lengths]
    for count in range(1, 5):
        for first in range(5 - count):
            chosen = slice(first, first + count)
            step = make_step(lengths[chosen], past_lens[chosen], accepted[chosen], list(range(4))[chosen])
            y, present = one(join(rows[chosen]), state, step)
            y2, present2 = two(join(rows[chosen]), state, step)
            assert same_bits(y, y2)
            assert_same_state(present, present2)
            offset = 0
            for s in range(first, first + count):
                alone, after = one(rows[s], state, make_step([lengths[s]], [past_lens[s]], [accepted[s]], [s]))
                assert same_bits(y[offset : offset + lengths[s]], alone)
                assert_same_state(
                    State(present.state[s], present.window[s], present.gates[s]),
                    State(after.state[s], after.window[s], after.gates[s]),
                )
                offset += lengths[s]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["qwen3_next", "qwen3_5"])
@pytest.mark.parametrize("shape", [Shape(2, 4, 64), Shape(2, 6, 32, tiled=False)], ids=str)
def test_matches_transformers(module: str, shape: Shape) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    rng = np.random.default_rng(9)
    weights = random_weights(rng, shape)
    rows = random_rows(rng, shape, 90)

    def tensor(x: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(x))

    columns = torch.nn.functional.pad(tensor(rows.qkv.T), (3, 0))[None]
    mixed = torch.nn.functional.silu(
        torch.nn.functional.conv1d(columns, tensor(weights.conv)[:, None], groups=shape.channels)
    )[0].T
    heads = mixed.reshape(90, -1, shape.dim)
    head = torch.arange(shape.v_heads)
    k_head = head % shape.k_heads if shape.tiled else head // (shape.v_heads // shape.k_heads)
    q, k, v = (
        heads[:, : shape.k_heads][:, k_head],
        heads[:, shape.k_heads : 2 * shape.k_heads][:, k_head],
        heads[:, 2 * shape.k_heads :],
    )
    g = torch.nn.functional.softplus(tensor(rows.alpha) + tensor(weights.dt_bias)) * tensor(weights.a)
    beta = torch.sigmoid(tensor(rows.beta))
    norms = {"qwen3_next": "Qwen3NextRMSNormGated", "qwen3_5": "Qwen3_5RMSNormGated"}
    norm = getattr(modeling, norms[module])(shape.dim, eps=EPS)
    norm.weight.data = tensor(weights.norm)
    for rule in (modeling.torch_recurrent_gated_delta_rule, modeling.torch_chunk_gated_delta_rule):
        with torch.no_grad():
            out, final = rule(
                q[None], k[None], v[None], g=g[None], beta=beta[None],
                initial_state=None, output_final_state=True, use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
            wanted = norm(out[0], tensor(rows.z).reshape(90, -1, shape.dim)).reshape(90, -1).numpy()
        y, state = Kernel(shape, weights, commit=True)(rows, empty_state(shape, 1), make_step([90], [0], [0], [0]))
        assert_close(y, wanted, 1e-5)
        assert_close(state.state, final.numpy(), 1e-5)
        steps, _ = decode(Kernel(shape, weights, commit=False), rows[:20], empty_state(shape, 1), 0, 0)
        assert_close(steps, wanted[:20], 1e-5)
