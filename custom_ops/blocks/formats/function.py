"""Block types in standard ONNX operators: weights as float32, bit for bit what `reference.unpack` gives.

Layouts: the types' definitions in ggml. A block is some bytes that stand for 32 or 256 weights; scales are halves, low
byte first, and finite. `rows` is [N, row bytes], and a function returns [N, weights].
"""

import numpy as np
from gguf import quants
from onnx import numpy_helper

from trigraph.custom_ops.blocks.formats import grid_function
from trigraph.custom_ops.blocks.formats.fields import blocks_of, by_group, each, fields, half, joined, levels, number
from trigraph.custom_ops.scripting import FLOAT, INT32, Function, Tensor, body, op

IQ4_LEVELS = numpy_helper.from_array(np.array(quants.IQ4_NL.kvalues, np.float32))
FP4_LEVELS = numpy_helper.from_array(np.array(quants.MXFP4.kvalues, np.float32))
# Half of a power of two by its exponent, as the levels are doubled.
POWERS = numpy_helper.from_array(np.ldexp(np.float32(1), np.arange(256) - 128))
# The same of a float of eight bits, the scale of NVFP4.
EIGHT_BITS = quants.NVFP4.ue4m3_to_fp32(np.arange(256, dtype=np.uint8))
EIGHT_BIT_SCALES = numpy_helper.from_array(EIGHT_BITS.astype(np.float32))
DIGITS = numpy_helper.from_array(np.array([[1], [3], [9], [27], [81]], np.int32))


@body
def six_bit_pairs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 8 scales and 8 minima in 12 bytes of a Q4_K or Q5_K block: low six bits of 8 bytes, then nibbles and tops."""
    first, last = op.Split(packed, [8, 4], axis=-1)
    low = op.BitwiseAnd(first, 63)
    high = joined(fields(last, width=4, bits=4), op.BitShift(first, 6, direction="RIGHT"), bits=4)
    scales = op.Concat(low[:, :, :4], high[:, :, :4], axis=-1)
    return number(scales), number(op.Concat(low[:, :, 4:], high[:, :, 4:], axis=-1))


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
    return op.Flatten(levels(codes, op.Constant(value=IQ4_LEVELS)) * half(scale))


@body
def unpack_iq4_xs(rows: Tensor) -> Tensor:
    scale, high, low, codes = op.Split(blocks_of(rows, size=136), [2, 2, 4, 128], axis=-1)
    scales = joined(fields(low, width=1, bits=4), fields(high, width=1, bits=2), bits=4)
    values = op.Reshape(levels(codes, op.Constant(value=IQ4_LEVELS)), op.Concat(op.Shape(scales), [-1], axis=0))
    return op.Flatten(values * each(half(scale) * (number(scales) - 32.0)))


@body
def unpack_mxfp4(rows: Tensor) -> Tensor:
    exponent, codes = op.Split(blocks_of(rows, size=17), [1, 16], axis=-1)
    scale = op.Gather(op.Constant(value=POWERS), op.Cast(exponent, to=INT32))
    return op.Flatten(levels(codes, op.Constant(value=FP4_LEVELS)) * scale)


@body
def unpack_nvfp4(rows: Tensor) -> Tensor:
    scales, codes = op.Split(blocks_of(rows, size=36), [4, 32], axis=-1)
    wide = op.Gather(op.Constant(value=EIGHT_BIT_SCALES), op.Cast(scales, to=INT32))
    values = op.Gather(op.Constant(value=FP4_LEVELS), op.Cast(fields(codes, width=8, bits=4), to=INT32))
    return op.Flatten(op.Reshape(values, op.Concat(op.Shape(scales), [-1], axis=0)) * each(wide))


@body
def unpack_q1_0(rows: Tensor) -> Tensor:
    scale, signs = op.Split(blocks_of(rows, size=18), [2, 16], axis=-1)
    return op.Flatten((number(fields(signs, width=1, bits=1)) * 2.0 - 1.0) * half(scale))


@body
def digits(packed: Tensor, count: int) -> Tensor:
    """Ternary digits of bytes: for all of them the first one, then the next ones."""
    powers = op.Constant(value=DIGITS)[:count]
    fractions = op.Mod(op.Unsqueeze(op.Cast(packed, to=INT32), [2]) * powers, 256)
    return op.Reshape(op.Cast(fractions * 3 / 256, to=FLOAT), [0, 0, -1])


@body
def unpack_tq1_0(rows: Tensor) -> Tensor:
    first, second, last, scale = op.Split(blocks_of(rows, size=54), [32, 16, 4, 2], axis=-1)
    codes = op.Concat(digits(first, count=5), digits(second, count=5), digits(last, count=4), axis=-1)
    return op.Flatten((codes - 1.0) * half(scale))


@body
def unpack_tq2_0(rows: Tensor) -> Tensor:
    codes, scale = op.Split(blocks_of(rows, size=66), [64, 2], axis=-1)
    return op.Flatten((number(fields(codes, width=32, bits=2)) - 1.0) * half(scale))


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
    "MXFP4": unpack_mxfp4,
    "IQ3_S": grid_function.unpack_iq3_s,
    "IQ3_XXS": grid_function.unpack_iq3_xxs,
    "IQ2_S": grid_function.unpack_iq2_s,
    "IQ2_XS": grid_function.unpack_iq2_xs,
    "IQ2_XXS": grid_function.unpack_iq2_xxs,
    "IQ1_M": grid_function.unpack_iq1_m,
    "IQ1_S": grid_function.unpack_iq1_s,
    "TQ2_0": unpack_tq2_0,
    "TQ1_0": unpack_tq1_0,
    "NVFP4": unpack_nvfp4,
    "Q1_0": unpack_q1_0,
}
"""By ggml type: uint8 rows [N, row bytes], or [N, D] of F32, F16 or BF16 -> float32 [N, D]."""
