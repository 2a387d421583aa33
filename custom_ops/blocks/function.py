"""Block types in standard ONNX operators: weights as float32, bit for bit what `reference.unpack` gives.

Layouts: the types' definitions in ggml. A block is some bytes that stand for 32 or 256 weights; scales are halves, low
byte first, and finite. `rows` is [N, row bytes], and a function returns [N, weights].
"""

import numpy as np
from onnx import numpy_helper

from trigraph.custom_ops.scripting import FLOAT, INT64, UINT8, Function, Tensor, body, op

# A half is its significand times the unit of its exponent.
HALF_UNITS = numpy_helper.from_array(np.exp2(np.maximum(np.arange(32), 1) - 25.0).astype(np.float32))
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
    exponent = op.BitwiseAnd(op.BitShift(high, 2, direction="RIGHT"), 31)
    fraction = op.Cast(op.BitwiseAnd(high, 3), to=FLOAT) * 256.0 + op.Cast(low, to=FLOAT)
    significand = op.Where(op.Cast(exponent, to=INT64) == 0, fraction, fraction + 1024.0)
    value = significand * op.Gather(op.Constant(value=HALF_UNITS), op.Cast(exponent, to=INT64))
    return op.Where(op.Cast(high, to=INT64) < 128, value, -value)


@body
def signed(codes: Tensor) -> Tensor:
    """Bytes in two's complement as float32."""
    return op.Cast(op.BitwiseXor(codes, 128), to=FLOAT) - 128.0


@body
def fields(codes: Tensor, width: int, bits: int) -> Tensor:
    """Bit fields of bytes as float32: [N, blocks, bytes] -> [N, blocks, bytes * 8 / bits].

    For each `width` bytes first the lowest `bits` of them all, then the next ones.
    """
    grouped = op.Reshape(codes, op.Concat([0, 0, -1, 1], op.Reshape(width, [1]), axis=0))
    shifts = op.Cast(op.Unsqueeze(op.Range(0, 8, bits), [1]), to=UINT8)
    mask = op.Cast(2**bits - 1, to=UINT8)
    parts = op.BitwiseAnd(op.BitShift(grouped, shifts, direction="RIGHT"), mask)
    return op.Cast(op.Reshape(parts, [0, 0, -1]), to=FLOAT)


@body
def scaled(codes: Tensor, scales: Tensor) -> Tensor:
    """Each code times the scale of its group: [N, blocks, codes], [N, blocks, groups] -> [N, blocks, groups, rest]."""
    return op.Reshape(codes, op.Concat(op.Shape(scales), [-1], axis=0)) * op.Unsqueeze(scales, [3])


@body
def six_bit_pairs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 8 scales and 8 minima in 12 bytes of a Q4_K or Q5_K block: low six bits of 8 bytes, then nibbles and tops."""
    first, last = op.Split(packed, [8, 4], axis=-1)
    tops = fields(first, width=8, bits=2)[:, :, 24:]
    low = op.Cast(first, to=FLOAT) - tops * 64.0
    high = fields(last, width=4, bits=4) + tops * 16.0
    scales = op.Concat(low[:, :, :4], high[:, :, :4], axis=-1)
    return scales, op.Concat(low[:, :, 4:], high[:, :, 4:], axis=-1)


@body
def unpack_f32(rows: Tensor) -> Tensor:
    return op.Identity(rows)


@body
def unpack_float(rows: Tensor) -> Tensor:
    return op.Cast(rows, to=FLOAT)


@body
def unpack_q8_0(rows: Tensor) -> Tensor:
    d, codes = op.Split(blocks_of(rows, size=34), [2, 32], axis=-1)
    return op.Flatten(half(d) * signed(codes))


@body
def unpack_q4_0(rows: Tensor) -> Tensor:
    d, codes = op.Split(blocks_of(rows, size=18), [2, 16], axis=-1)
    return op.Flatten(half(d) * (fields(codes, width=16, bits=4) - 8.0))


@body
def unpack_q4_1(rows: Tensor) -> Tensor:
    d, m, codes = op.Split(blocks_of(rows, size=20), [2, 2, 16], axis=-1)
    return op.Flatten(half(d) * fields(codes, width=16, bits=4) + half(m))


@body
def unpack_q5_0(rows: Tensor) -> Tensor:
    d, top, codes = op.Split(blocks_of(rows, size=22), [2, 4, 16], axis=-1)
    code = fields(codes, width=16, bits=4) + fields(top, width=1, bits=1) * 16.0
    return op.Flatten(half(d) * (code - 16.0))


@body
def unpack_q5_1(rows: Tensor) -> Tensor:
    d, m, top, codes = op.Split(blocks_of(rows, size=24), [2, 2, 4, 16], axis=-1)
    code = fields(codes, width=16, bits=4) + fields(top, width=1, bits=1) * 16.0
    return op.Flatten(half(d) * code + half(m))


@body
def unpack_q2_k(rows: Tensor) -> Tensor:
    packed, codes, d, minimum = op.Split(blocks_of(rows, size=84), [16, 64, 2, 2], axis=-1)
    scales, minima = op.Split(fields(packed, width=16, bits=4), num_outputs=2, axis=-1)
    values = scaled(fields(codes, width=32, bits=2), half(d) * scales)
    return op.Flatten(values - op.Unsqueeze(half(minimum) * minima, [3]))


@body
def unpack_q3_k(rows: Tensor) -> Tensor:
    top, codes, low, high, d = op.Split(blocks_of(rows, size=110), [32, 64, 8, 4, 2], axis=-1)
    scales = fields(low, width=8, bits=4) + fields(high, width=4, bits=2) * 16.0 - 32.0
    code = fields(codes, width=32, bits=2) + fields(top, width=32, bits=1) * 4.0 - 4.0
    return op.Flatten(scaled(code, half(d) * scales))


@body
def unpack_q4_k(rows: Tensor) -> Tensor:
    d, minimum, packed, codes = op.Split(blocks_of(rows, size=144), [2, 2, 12, 128], axis=-1)
    scales, minima = six_bit_pairs(packed)
    values = scaled(fields(codes, width=32, bits=4), half(d) * scales)
    return op.Flatten(values - op.Unsqueeze(half(minimum) * minima, [3]))


@body
def unpack_q5_k(rows: Tensor) -> Tensor:
    d, minimum, packed, top, codes = op.Split(blocks_of(rows, size=176), [2, 2, 12, 32, 128], axis=-1)
    scales, minima = six_bit_pairs(packed)
    code = fields(codes, width=32, bits=4) + fields(top, width=32, bits=1) * 16.0
    return op.Flatten(scaled(code, half(d) * scales) - op.Unsqueeze(half(minimum) * minima, [3]))


@body
def unpack_q6_k(rows: Tensor) -> Tensor:
    low, top, scales, d = op.Split(blocks_of(rows, size=210), [128, 64, 16, 2], axis=-1)
    code = fields(low, width=64, bits=4) + fields(top, width=32, bits=2) * 16.0 - 32.0
    return op.Flatten(scaled(code, half(d) * signed(scales)))


@body
def unpack_iq4_nl(rows: Tensor) -> Tensor:
    d, codes = op.Split(blocks_of(rows, size=18), [2, 16], axis=-1)
    levels = op.Gather(op.Constant(value=IQ4_LEVELS), op.Cast(fields(codes, width=16, bits=4), to=INT64))
    return op.Flatten(half(d) * levels)


@body
def unpack_iq4_xs(rows: Tensor) -> Tensor:
    d, high, low, codes = op.Split(blocks_of(rows, size=136), [2, 2, 4, 128], axis=-1)
    scales = fields(low, width=1, bits=4) + fields(high, width=1, bits=2) * 16.0 - 32.0
    levels = op.Gather(op.Constant(value=IQ4_LEVELS), op.Cast(fields(codes, width=16, bits=4), to=INT64))
    return op.Flatten(scaled(levels, half(d) * scales))


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
