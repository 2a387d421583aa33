"""Block types in standard ONNX operators: weights as float32, bit for bit what `reference.unpack` gives.

Layouts: the types' definitions in ggml. A block is some bytes that stand for 32 or 256 weights; scales are halves, low
byte first, and finite. `rows` is [N, row bytes], and a function returns [N, weights].
"""

import numpy as np
from onnx import numpy_helper

from trigraph.custom_ops.scripting import FLOAT, INT32, INT64, UINT8, Function, Tensor, body, op

# A half by its high byte: the value where the low byte is 0, and what each step of the low byte adds.
_HIGH = np.arange(256)
_STEP = np.where(_HIGH < 128, 1, -1) * np.exp2(np.maximum(_HIGH >> 2 & 31, 1) - 25.0)
HALF_STEP = numpy_helper.from_array(_STEP.astype(np.float32))
HALF_BASE = numpy_helper.from_array((_STEP * ((_HIGH & 3) * 256 + 1024 * ((_HIGH >> 2 & 31) > 0))).astype(np.float32))
IQ4_LEVELS = numpy_helper.from_array(
    np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
)


@body
def blocks_of(rows: Tensor, size: int) -> Tensor:
    """[N, row bytes] -> [N, blocks, size]."""
    return op.Reshape(rows, op.Concat([0, -1], op.Reshape(size, [1]), axis=0))


@body
def half(pair: Tensor) -> Tensor:
    """Finite halves, two bytes each [N, blocks, 2] -> [N, blocks, 1]."""
    low, high = op.Split(pair, num_outputs=2, axis=-1)
    index = op.Cast(high, to=INT64)
    step = op.Gather(op.Constant(value=HALF_STEP), index)
    return op.Gather(op.Constant(value=HALF_BASE), index) + op.Cast(low, to=FLOAT) * step


@body
def fields(packed: Tensor, width: int, bits: int) -> Tensor:
    """Bit fields of bytes, as bytes: [N, blocks, bytes] -> [N, blocks, bytes * 8 / bits].

    For each `width` bytes first the lowest `bits` of them all, then the next ones.
    """
    shifts = op.Cast(op.Unsqueeze(op.Range(0, 8, bits), [1]), to=UINT8)
    mask = op.Cast(2**bits - 1, to=UINT8)
    wide = op.Reshape(packed, op.Concat([0, 0, -1, 1], op.Reshape(width, [1]), axis=0))
    return op.Reshape(op.BitwiseAnd(op.BitShift(wide, shifts, direction="RIGHT"), mask), [0, 0, -1])


@body
def joined(low: Tensor, high: Tensor, bits: int) -> Tensor:
    """Codes whose lowest `bits` are `low`, and those above `high`."""
    return op.BitwiseOr(low, op.BitShift(high, op.Cast(bits, to=UINT8), direction="LEFT"))


@body
def number(codes: Tensor) -> Tensor:
    return op.Cast(codes, to=FLOAT)


@body
def by_group(codes: Tensor, scales: Tensor) -> Tensor:
    """Codes [N, blocks, codes] as numbers beside their group's scale [N, blocks, groups]: [N, blocks, groups, rest]."""
    return op.Cast(op.Reshape(codes, op.Concat(op.Shape(scales), [-1], axis=0)), to=FLOAT)


@body
def each(scales: Tensor) -> Tensor:
    """The scale of a group for each of its codes: [N, blocks, groups, 1]."""
    return op.Unsqueeze(scales, [3])


@body
def six_bit_pairs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 8 scales and 8 minima in 12 bytes of a Q4_K or Q5_K block: low six bits of 8 bytes, then nibbles and tops."""
    first, last = op.Split(packed, [8, 4], axis=-1)
    low = op.BitwiseAnd(first, 63)
    high = joined(fields(last, width=4, bits=4), op.BitShift(first, 6, direction="RIGHT"), bits=4)
    scales = op.Concat(low[:, :, :4], high[:, :, :4], axis=-1)
    return number(scales), number(op.Concat(low[:, :, 4:], high[:, :, 4:], axis=-1))


@body
def iq4_levels(codes: Tensor) -> Tensor:
    return op.Gather(op.Constant(value=IQ4_LEVELS), op.Cast(fields(codes, width=16, bits=4), to=INT32))


@body
def unpack_f32(rows: Tensor) -> Tensor:
    return op.Identity(rows)


@body
def unpack_float(rows: Tensor) -> Tensor:
    return op.Cast(rows, to=FLOAT)


@body
def unpack_q8_0(rows: Tensor) -> Tensor:
    scale, codes = op.Split(blocks_of(rows, size=34), [2, 32], axis=-1)
    return op.Flatten((number(op.BitwiseXor(codes, 128)) - 128.0) * half(scale))


@body
def unpack_q4_0(rows: Tensor) -> Tensor:
    scale, codes = op.Split(blocks_of(rows, size=18), [2, 16], axis=-1)
    return op.Flatten((number(fields(codes, width=16, bits=4)) - 8.0) * half(scale))


@body
def unpack_q4_1(rows: Tensor) -> Tensor:
    scale, minimum, codes = op.Split(blocks_of(rows, size=20), [2, 2, 16], axis=-1)
    return op.Flatten(number(fields(codes, width=16, bits=4)) * half(scale) + half(minimum))


@body
def unpack_q5_0(rows: Tensor) -> Tensor:
    scale, top, low = op.Split(blocks_of(rows, size=22), [2, 4, 16], axis=-1)
    codes = joined(fields(low, width=16, bits=4), fields(top, width=1, bits=1), bits=4)
    return op.Flatten((number(codes) - 16.0) * half(scale))


@body
def unpack_q5_1(rows: Tensor) -> Tensor:
    scale, minimum, top, low = op.Split(blocks_of(rows, size=24), [2, 2, 4, 16], axis=-1)
    codes = joined(fields(low, width=16, bits=4), fields(top, width=1, bits=1), bits=4)
    return op.Flatten(number(codes) * half(scale) + half(minimum))


@body
def unpack_q2_k(rows: Tensor) -> Tensor:
    packed, codes, scale, minimum = op.Split(blocks_of(rows, size=84), [16, 64, 2, 2], axis=-1)
    scales, minima = op.Split(number(fields(packed, width=16, bits=4)), num_outputs=2, axis=-1)
    values = by_group(fields(codes, width=32, bits=2), scales) * each(half(scale) * scales)
    return op.Flatten(values - each(half(minimum) * minima))


@body
def unpack_q3_k(rows: Tensor) -> Tensor:
    top, low, low_scales, high_scales, scale = op.Split(blocks_of(rows, size=110), [32, 64, 8, 4, 2], axis=-1)
    scales = joined(fields(low_scales, width=8, bits=4), fields(high_scales, width=4, bits=2), bits=4)
    codes = joined(fields(low, width=32, bits=2), fields(top, width=32, bits=1), bits=2)
    return op.Flatten((by_group(codes, scales) - 4.0) * each(half(scale) * (number(scales) - 32.0)))


@body
def unpack_q4_k(rows: Tensor) -> Tensor:
    scale, minimum, packed, codes = op.Split(blocks_of(rows, size=144), [2, 2, 12, 128], axis=-1)
    scales, minima = six_bit_pairs(packed)
    values = by_group(fields(codes, width=32, bits=4), scales) * each(half(scale) * scales)
    return op.Flatten(values - each(half(minimum) * minima))


@body
def unpack_q5_k(rows: Tensor) -> Tensor:
    scale, minimum, packed, top, low = op.Split(blocks_of(rows, size=176), [2, 2, 12, 32, 128], axis=-1)
    scales, minima = six_bit_pairs(packed)
    codes = joined(fields(low, width=32, bits=4), fields(top, width=32, bits=1), bits=4)
    return op.Flatten(by_group(codes, scales) * each(half(scale) * scales) - each(half(minimum) * minima))


@body
def unpack_q6_k(rows: Tensor) -> Tensor:
    low, top, scales, scale = op.Split(blocks_of(rows, size=210), [128, 64, 16, 2], axis=-1)
    codes = joined(fields(low, width=64, bits=4), fields(top, width=32, bits=2), bits=4)
    signed = number(op.BitwiseXor(scales, 128)) - 128.0
    return op.Flatten((by_group(codes, scales) - 32.0) * each(half(scale) * signed))


@body
def unpack_iq4_nl(rows: Tensor) -> Tensor:
    scale, codes = op.Split(blocks_of(rows, size=18), [2, 16], axis=-1)
    return op.Flatten(iq4_levels(codes) * half(scale))


@body
def unpack_iq4_xs(rows: Tensor) -> Tensor:
    scale, high, low, codes = op.Split(blocks_of(rows, size=136), [2, 2, 4, 128], axis=-1)
    scales = joined(fields(low, width=1, bits=4), fields(high, width=1, bits=2), bits=4)
    levels = op.Reshape(iq4_levels(codes), op.Concat(op.Shape(scales), [-1], axis=0))
    return op.Flatten(levels * each(half(scale) * (number(scales) - 32.0)))


UNPACK: dict[str, Function] = {
    "F32": unpack_f32,
    "F16": unpack_float,
    "BF16": unpack_float,
    "Q8_0": unpack_q8_0,
    "Q4_0": unpack_q4_0,
    "Q4_1": unpack_q4_1,
    "Q5_0": unpack_q5_0,
    "Q5_1": unpack_q5_1,
    "Q2_K": unpack_q2_k,
    "Q3_K": unpack_q3_k,
    "Q4_K": unpack_q4_k,
    "Q5_K": unpack_q5_k,
    "Q6_K": unpack_q6_k,
    "IQ4_NL": unpack_iq4_nl,
    "IQ4_XS": unpack_iq4_xs,
}
"""By ggml type: uint8 rows [N, row bytes], or [N, D] of F32, F16 or BF16 -> float32 [N, D]."""
