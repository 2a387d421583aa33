"""The same operators over a cache of rotated heads in Q8_0 blocks, uint8 [pages, page size, KV, D / 32 x 34]."""

from collections.abc import Sequence

import numpy as np
from onnx import numpy_helper

from trigraph.custom_ops.blocks.formats.function import unpack_q8_0
from trigraph.custom_ops.paged_attention.function import (
    attend_rows,
    masked,
    norm_rotate,
    places,
    queries,
    sequence_ends,
    stored_entries,
    turning,
)
from trigraph.custom_ops.paged_attention.reference import MOST_KEY, MOST_VALUE
from trigraph.custom_ops.scripting import FLOAT, FLOAT16, INT64, UINT8, Tensor, body, op, row_positions

SIZES = numpy_helper.from_array(2 ** np.arange(11))
HALF_POWERS = numpy_helper.from_array(np.exp2(np.arange(-14, 16), dtype=np.float32))


@body
def rotate(x: Tensor, most: int) -> Tensor:
    """Heads [..., D] times the Hadamard matrix / sqrt(n), in blocks of n, the largest power of two that divides D."""
    sizes = op.Constant(value=SIZES)
    width = op.Shape(x, start=-1)
    size = op.Min(op.ReduceMax(op.Where(op.Mod(width, sizes) == 0, sizes, 1)), op.Reshape(most, [1]))
    bits = op.Cast(op.Mod(op.Unsqueeze(op.Range(0, op.Squeeze(size), 1), [1]) / sizes, 2), to=FLOAT)
    odd = op.Mod(op.Cast(op.MatMul(bits, op.Transpose(bits, perm=[1, 0])), to=INT64), 2)
    matrix = (1.0 - 2.0 * op.Cast(odd, to=FLOAT)) / op.Sqrt(op.Cast(size, to=FLOAT))
    return op.Reshape(op.MatMul(op.Reshape(x, op.Concat([-1], size, axis=0)), matrix), op.Shape(x))


@body
def half_bytes(scale: Tensor) -> Tensor:
    """The bytes of positive halves, the low one first: float32 [N, 1] -> uint8 [N, 2]."""
    powers = op.Constant(value=HALF_POWERS)
    value = op.Cast(op.Cast(scale, to=FLOAT16), to=FLOAT)
    exponent = op.Max(op.ReduceSum(op.Cast(value >= powers, to=INT64), [1]) - 1, 0)
    fraction = op.Cast(value / op.Gather(powers, exponent) * 1024.0, to=INT64)
    bits = exponent * 1024 + fraction
    return op.Cast(op.Concat(op.Mod(bits, 256), bits / 256, axis=1), to=UINT8)


@body
def quantise(heads: Tensor) -> Tensor:
    """Q8_0 blocks of rotated heads: [T, KV, D] -> uint8 [T, KV, D / 32 x 34]."""
    blocks = op.Reshape(heads, [-1, 32])
    scale = op.ReduceMax(op.Abs(blocks), [1], keepdims=1) / 127.0
    shifted = blocks * op.Where(scale > 0.0, 1.0 / scale, 0.0)
    whole = op.Floor(op.Abs(shifted))
    code = op.Sign(shifted) * (whole + op.Cast(op.Abs(shifted) - whole >= 0.5, to=FLOAT))
    codes = op.Cast(op.Where(code < 0.0, code + 256.0, code), to=UINT8)
    rows = op.Concat(half_bytes(scale), codes, axis=1)
    return op.Reshape(rows, op.Concat(op.Shape(heads, end=2), [-1], axis=0))


@body
def round_blocks(heads: Tensor) -> Tensor:
    """Heads [..., D] rounded in blocks of 32 to integers, up to 127, times the block's largest magnitude / 127."""
    blocks = op.Reshape(heads, [-1, 32])
    most = op.ReduceMax(op.Abs(blocks), [1], keepdims=1)
    codes = op.Round(blocks * op.Where(most > 0.0, 127.0 / most, 0.0))
    return op.Reshape(codes * (most / 127.0), op.Shape(heads))


@body
def quantised_entries(cache: Tensor, page_table: Tensor, ends: Tensor) -> Tensor:
    """Rotated keys or values of each sequence up to the longest: float32 [S, positions, KV, D]."""
    stored = stored_entries(cache, page_table, ends)
    heads = unpack_q8_0(op.Reshape(stored, op.Concat([-1], op.Shape(stored, start=3), axis=0)))
    return masked(op.Reshape(heads, op.Concat(op.Shape(stored, end=3), [-1], axis=0)), ends)


@body
def written_q8_0(
    k: Tensor, v: Tensor, k_norm: Tensor, past_key: Tensor, past_value: Tensor,
    sequence: Tensor, place: Tensor, turns: Tensor, page_table: Tensor,
    rope_dims: int, rope_theta: float, eps: float, rope_factor: float, rope_ramp_start: int, rope_ramp_end: int,
    rope_magnitude: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The cache with the rows' entries, at places [T] of their sequences, turned by positions [T, pairs or 1]."""
    shape = op.Concat(op.Shape(sequence), op.Shape(past_key, start=2, end=3), op.Shape(k_norm), axis=0)
    key = norm_rotate(
        op.Reshape(k, shape), k_norm, turns,
        rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end, rope_magnitude,
    )  # fmt: skip
    entry = places(sequence, place, page_table, op.Shape(past_key, start=1, end=2))
    present_key = op.ScatterND(past_key, entry, quantise(rotate(key, most=MOST_KEY)))
    present_value = op.ScatterND(past_value, entry, quantise(rotate(op.Reshape(v, shape), most=MOST_VALUE)))
    return present_key, present_value


@body
def paged_kv_write_q8_0(
    k: Tensor, v: Tensor, k_norm: Tensor, past_key: Tensor, past_value: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor,
    rope_dims: int, rope_theta: float, eps: float, rope_factor: float = 1.0, rope_ramp_start: int = 0,
    rope_ramp_end: int = 0, rope_magnitude: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sequence, _, place = row_positions(cu_seqlens, past_lens)
    present_key, present_value = written_q8_0(
        k, v, k_norm, past_key, past_value, sequence, place, op.Unsqueeze(place, [1]), page_table,
        rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end, rope_magnitude,
    )  # fmt: skip
    return present_key, present_value


@body
def paged_kv_write_q8_0_by_axis(
    k: Tensor, v: Tensor, k_norm: Tensor, past_key: Tensor, past_value: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor, positions: Tensor,
    rope_sections: Sequence[int], rope_dims: int, rope_theta: float, eps: float, rope_factor: float = 1.0,
    rope_ramp_start: int = 0, rope_ramp_end: int = 0, rope_magnitude: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sequence, _, place = row_positions(cu_seqlens, past_lens)
    present_key, present_value = written_q8_0(
        k, v, k_norm, past_key, past_value, sequence, place, turning(positions, rope_dims, rope_sections), page_table,
        rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end, rope_magnitude,
    )  # fmt: skip
    return present_key, present_value


@body
def attended_q8_0(
    q_gate: Tensor, q_norm: Tensor, key: Tensor, value: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor, turns: Tensor,
    rope_dims: int, rope_theta: float, eps: float, rope_factor: float, rope_ramp_start: int, rope_ramp_end: int,
    rope_magnitude: float,
) -> Tensor:  # fmt: skip
    """What PagedAttention makes of queries that are turned by positions [R, pairs or 1]."""
    sequence, number, place = row_positions(cu_seqlens, past_lens)
    q, gate = queries(
        q_gate, q_norm, turns,
        rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end, rope_magnitude,
    )  # fmt: skip
    ends = sequence_ends(cu_seqlens, past_lens)
    keys, values = quantised_entries(key, page_table, ends), quantised_entries(value, page_table, ends)
    y = attend_rows(round_blocks(rotate(q, most=MOST_KEY)), keys, values, sequence, number, place, cu_seqlens)
    y = rotate(op.Reshape(y, op.Shape(gate)), most=MOST_VALUE)
    return op.Flatten(y * op.Sigmoid(gate))


@body
def paged_attention_q8_0(
    q_gate: Tensor, q_norm: Tensor, key: Tensor, value: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor,
    rope_dims: int, rope_theta: float, eps: float, rope_factor: float = 1.0, rope_ramp_start: int = 0,
    rope_ramp_end: int = 0, rope_magnitude: float = 1.0,
) -> Tensor:  # fmt: skip
    _, _, place = row_positions(cu_seqlens, past_lens)
    return attended_q8_0(
        q_gate, q_norm, key, value, cu_seqlens, past_lens, page_table, op.Unsqueeze(place, [1]),
        rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end, rope_magnitude,
    )  # fmt: skip


@body
def paged_attention_q8_0_by_axis(
    q_gate: Tensor, q_norm: Tensor, key: Tensor, value: Tensor,
    cu_seqlens: Tensor, past_lens: Tensor, page_table: Tensor, positions: Tensor,
    rope_sections: Sequence[int], rope_dims: int, rope_theta: float, eps: float, rope_factor: float = 1.0,
    rope_ramp_start: int = 0, rope_ramp_end: int = 0, rope_magnitude: float = 1.0,
) -> Tensor:  # fmt: skip
    return attended_q8_0(
        q_gate, q_norm, key, value, cu_seqlens, past_lens, page_table, turning(positions, rope_dims, rope_sections),
        rope_dims, rope_theta, eps, rope_factor, rope_ramp_start, rope_ramp_end, rope_magnitude,
    )  # fmt: skip
