"""Function bodies of GatedDeltaNet and of attention: against the references and against the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.body import Body
from support.operators.gdn_cases import SHAPES, STEPS, Kernel, Shape, empty_state, make_step, random_rows, random_state
from support.operators.gdn_cases import random_weights as gdn_weights
from support.operators.run import Operator
from trigraph.custom_ops.gated_delta_net.reference import State, Step
from trigraph.custom_ops.paged_attention.reference import paged_attention, paged_kv_write

Array = NDArray[Any]
ROTARY: dict[str, Any] = {"rope_dims": 16, "rope_theta": 1e7, "eps": 1e-6}


@pytest.mark.parametrize("commit", [False, True], ids=["verify", "prefill"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if not shape.sigmoid_gate], ids=str)
def test_gated_delta_net(shape: Shape, commit: bool) -> None:
    rng = np.random.default_rng(0)
    kernel = Kernel(shape, gdn_weights(rng, shape), commit=commit, aliased=False)
    state = random_state(rng, shape, 5)
    for lengths, *rest in STEPS:
        step, rows = make_step(lengths, *rest), random_rows(rng, shape, sum(lengths))
        found = run_gated_delta_net(kernel, state, step, rows)
        for expected in (kernel.reference(rows, state, step), kernel(rows, state, step)):
            for actual, wanted in zip(found, flat(expected), strict=True):
                np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))


def test_gated_delta_net_does_not_read_a_slot_at_the_start_of_a_text() -> None:
    rng, shape = np.random.default_rng(1), SHAPES[0]
    kernel = Kernel(shape, gdn_weights(rng, shape), commit=True)
    step, rows = make_step([70, 3], [0, 0], [0, 0], [1, 0]), random_rows(rng, shape, 73)
    y, *present = run_gated_delta_net(kernel, empty_state(shape, 2), step, rows)
    wanted, state = kernel.reference(rows, empty_state(shape, 2), step)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))
    np.testing.assert_allclose(present[0], state.state, rtol=0, atol=1e-5)


def run_gated_delta_net(kernel: Kernel, state: State, step: Step, rows: Any) -> list[Array]:
    inputs = kernel._inputs(rows, state, step)
    attributes = kernel.shape.attributes(kernel.commit)
    return Body("GatedDeltaNet", inputs, [np.float32] * 4, attributes)(*inputs)


def flat(result: tuple[Array, State]) -> list[Array]:
    y, state = result
    return [y, state.state, state.window, state.gates]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("heads, kv_heads, width, page", [(4, 2, 32, 8), (6, 1, 48, 5), (3, 3, 16, 64)])
def test_attention(dtype: Any, heads: int, kv_heads: int, width: int, page: int) -> None:
    """Three ragged sequences on scattered pages; what is past the end of a text is NaN, and nonsense in the table."""
    rng = np.random.default_rng(0)
    lengths, past = [3, 1, 7], [0, 2 * page + 1, page - 2]
    cu, past_lens = np.array([0, 3, 4, 11], np.int32), np.array(past, np.int32)
    table = np.array([[5, 99, 99, -1], [1, 7, 2, 99], [3, 0, 4, 99]], np.int32)
    cache = [rng.standard_normal((9, page, kv_heads, width)).astype(dtype) for _ in range(2)]
    for s, (start, count) in enumerate(zip(past, lengths, strict=True)):
        for position in range(start + count, 3 * page):
            if 0 <= table[s, position // page] < 9:
                for part in cache:
                    part[table[s, position // page], position % page] = np.nan
    k, v = (rng.standard_normal((11, kv_heads * width), dtype=np.float32) for _ in range(2))
    q = rng.standard_normal((11, heads * 2 * width), dtype=np.float32)
    norm = rng.uniform(0.5, 1.5, width).astype(np.float32)
    sequences = [cu, past_lens, table]

    writes: list[Any] = [k, v, norm, *cache, *sequences]
    present = Body("PagedKVWrite", writes, [dtype] * 2, ROTARY)(*writes)
    shapes = [part.shape for part in cache]
    kernel = Operator("PagedKVWrite", writes, [dtype] * 2, ROTARY)(*writes, output_shapes=shapes)
    tolerance = 2e-3 if dtype == np.float16 else 1e-5
    for found, wanted, own in zip(present, paged_kv_write(*writes, **ROTARY), kernel, strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
        np.testing.assert_allclose(found, own, rtol=0, atol=tolerance)

    reads: list[Any] = [q, norm, *present, *sequences]
    (y,) = Body("PagedAttention", reads, [np.float32], ROTARY)(*reads)
    np.testing.assert_allclose(y, np.asarray(paged_attention(*reads, **ROTARY)), rtol=0, atol=1e-5)
    own = Operator("PagedAttention", reads, [np.float32], ROTARY)(*reads)[0]
    np.testing.assert_allclose(y, own, rtol=0, atol=1e-5)


def test_rotary_angles_far_into_a_text() -> None:
    """Float32 angles would be off by hundredths at position 250,000."""
    rng = np.random.default_rng(0)
    inputs: list[Any] = [
        *(rng.standard_normal((2, 32), dtype=np.float32) for _ in range(2)),
        np.ones(32, np.float32),
        *(np.zeros((2, 64, 1, 32), np.float32) for _ in range(2)),
        np.array([0, 2], np.int32),
        np.array([250_000], np.int32),
        np.tile(np.array([0, 1], np.int32), 2048)[None],
    ]
    key, _ = Body("PagedKVWrite", inputs, [np.float32] * 2, ROTARY)(*inputs)
    np.testing.assert_allclose(key, np.asarray(paged_kv_write(*inputs, **ROTARY)[0]), rtol=0, atol=1e-5)
