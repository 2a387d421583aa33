"""A cache of rotated heads in Q8_0 blocks: blocks as `gguf` makes them, attention as the NumPy reference computes it
from them, and how far that is from attention over float32 entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from support.operators.attention_step import Attention, Heads, Step, assert_attended, assert_close, make_step
from support.operators.run import Operator, same_bits
from trigraph.custom_ops.paged_attention.reference import decode, paged_attention, paged_kv_write, rotate

Q8_0 = GGMLQuantizationType.Q8_0


def hadamard(size: int) -> NDArray[np.float64]:
    """Sylvester's construction."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def cached(width: int = 64, group: int = 2, kv: int = 2, page: int = 16) -> Heads:
    return Heads(width=width, group=group, kv=kv, page=page, dtype=np.uint8)


@pytest.mark.parametrize(("width", "size"), [(32, 32), (64, 64), (96, 32), (192, 64), (256, 256)])
def test_the_rotation_is_a_hadamard_matrix(width: int, size: int) -> None:
    matrix = np.kron(np.eye(width // size), hadamard(size) / np.sqrt(size))
    found = rotate(np.eye(width), 1024)
    np.testing.assert_allclose(found, matrix, atol=1e-12)
    np.testing.assert_allclose(rotate(found, 1024), np.eye(width), atol=1e-12)


def written_values(heads: Heads, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The blocks of values [T, KV, D] of one sequence."""
    step = make_step(heads, [len(values)], [0])
    step.v = values.reshape(len(values), -1)
    positions = np.arange(len(values))
    stored = Attention(heads).write(step)[1]
    found: NDArray[np.uint8] = stored[step.page_table[0, positions // heads.page], positions % heads.page]
    return found


@pytest.mark.parametrize("width", [32, 64, 96, 256])
def test_blocks_have_the_bytes_of_gguf(isa: str, width: int) -> None:
    """Of values whose rotation is exact in float32 but for one factor: integers, and a power of two of them."""
    heads, rng = cached(width), np.random.default_rng(width)
    values = rng.integers(-900, 900, (40, heads.kv, width)).astype(np.float32)
    values[1] = 0
    values[2], values[2, :, 0] = 0, 127  # all elements of a block alike
    values[3] *= np.float32(2**-27)  # scales below the normal halves
    values[4] *= np.float32(2**-100)  # and below all
    size = min(64, width & -width)
    matrix = hadamard(size).astype(np.float32)
    exact = (values.reshape(-1, size).astype(np.float64) @ matrix).astype(np.float32)
    wanted = quants.quantize(exact.reshape(values.shape) * (np.float32(1) / np.sqrt(np.float32(size))), Q8_0)
    found = written_values(heads, values)
    assert same_bits(found, wanted)


def test_ties_go_away_from_zero(isa: str) -> None:
    heads = cached(64)
    blocks = np.zeros((1, 2, 64), np.float32)
    blocks[..., 0], blocks[..., 32] = 127, -127
    blocks[..., 1:32] = np.arange(31) + 0.5
    blocks[..., 33:64] = -(np.arange(31) + 0.5)
    found = written_values(heads, rotate(blocks, 64).astype(np.float32))
    assert same_bits(found, quants.quantize(blocks, Q8_0))
    assert found.reshape(2, 2, 34)[0, 0, 3] == 1, "0.5 becomes 1"


@pytest.mark.parametrize(("width", "group"), [(32, 5), (64, 1), (96, 3), (128, 2), (256, 6), (256, 8)])
def test_matches_the_reference(isa: str, width: int, group: int) -> None:
    heads = cached(width, group)
    step = make_step(heads, [1, 3, 63, 65, 1, 2], [0, 1, 63, 64, 65, 1000])
    attention = Attention(heads)
    key, value = attention.write(step)
    for found, wanted, past in zip(
        (key, value), paged_kv_write(*step.write, **heads.rotary), (step.past_key, step.past_value), strict=True
    ):
        changed = np.any(wanted != past, -1)
        assert same_bits(found[~changed], past[~changed])
        # A value near the middle of two codes may get either, as the reference computes in float64.
        steps = found[changed].reshape(-1, 34)[:, :2].copy().view(np.float16).astype(np.float32)
        off = np.abs(decode(found[changed]) - decode(wanted[changed])).reshape(-1, 32) / np.maximum(steps, 1e-30)
        assert off.max() <= 1.01 and (off > 0.1).mean() < 1e-3
    wanted = paged_attention(*step.attend(key, value), **heads.rotary)
    assert_attended(heads, step, attention.attend(step, key, value), wanted, 4e-6)


def outliers(step: Step) -> Step:
    """The step with one dimension of keys and values twenty times as large, as trained models have them."""
    heads = 64
    large = np.where(np.arange(heads) == 5, 20, 1).astype(np.float32)
    return replace(step, k_norm=step.k_norm * large, v=(step.v.reshape(-1, heads) * large).reshape(step.v.shape))


def test_rotation_keeps_outliers_from_costing_the_others() -> None:
    """Half the error, at least, of blocks that are not rotated."""
    exact = Heads(group=4, dtype=np.float32)
    step = outliers(make_step(exact, [200], [0]))
    key, value = Attention(exact).write(step)
    wanted = Attention(exact).attend(step, key, value)

    def error(key: Any, value: Any, heads: Heads) -> float:
        return float(np.abs(Attention(heads).attend(step, key, value) - wanted).mean())

    plain_key, plain_value = (quants.dequantize(quants.quantize(np.nan_to_num(x), Q8_0), Q8_0) for x in (key, value))
    heads = cached(group=4)
    rotated = replace(step, past_key=heads.empty(len(key)), past_value=heads.empty(len(key)))
    ours = error(*Attention(heads).write(rotated), heads)
    assert 0 < 2 * ours < error(plain_key, plain_value, exact)


def test_bad_values_stay_in_their_row(isa: str) -> None:
    heads = cached(group=4)
    attention = Attention(heads)
    step = make_step(heads, [4], [61])
    clean = attention(step)
    for bad in (np.nan, np.inf):
        rows = step.v.copy()
        rows[2, 7] = bad
        dirty = attention(replace(step, v=rows))
        assert same_bits(dirty[:2], clean[:2])
        assert np.isnan(dirty[2:]).any(-1).all()


def test_queries_of_nothing_and_bad_ones(isa: str) -> None:
    """Zeros attend to all alike; what is not finite stays in its head."""
    heads = cached(96, group=2)
    attention = Attention(heads)
    step = make_step(heads, [4], [61])
    step.q_gate[1, :96] = 0
    key, value = attention.write(step)
    clean = attention.attend(step, key, value)
    wanted = paged_attention(*step.attend(key, value), **heads.rotary)
    assert_close(clean[1, :96], wanted[1, :96], 4e-6)
    for bad in (np.nan, np.inf):
        rows = step.q_gate.copy()
        rows[2, 7] = bad
        dirty = attention.attend(replace(step, q_gate=rows), key, value)
        assert np.isnan(dirty[2, :96]).all()
        dirty[2, :96] = clean[2, :96]
        assert same_bits(dirty, clean)


def test_other_blocks_are_refused() -> None:
    heads = cached()
    step = make_step(heads, [1], [0])
    inputs = step.attend(step.past_key, step.past_value)
    for type, message in (({"type": "Q4_0"}, "type is Q4_0, and a cache of bytes holds Q8_0"), ({}, "type is missing")):
        with pytest.raises(Exception, match=message):
            Operator("PagedAttention", inputs, [np.float32], heads.rotary | type)
        with pytest.raises(Exception, match=message):
            Operator("PagedKVWrite", step.write, [np.uint8] * 2, heads.rotary | type)
    odd = [np.zeros((1, 16, 2, 33), np.uint8)] * 2
    operator = Operator("PagedAttention", step.attend(*odd), [np.float32], heads.attributes)
    with pytest.raises(Exception, match="key has 33 bytes a head, not a multiple of 34"):
        operator(*step.attend(*odd), output_shapes=[(1, heads.kv * heads.group * heads.width)])
