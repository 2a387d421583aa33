"""The IQ types of one to three bits in standard ONNX operators; see function.py.

An index stands for the levels of four or eight weights. Products of halves, scales and levels are exact in float32.
"""

from onnx import TensorProto, numpy_helper

from trigraph.custom_ops.blocks.formats.fields import blocks_of, fields, half, joined, number
from trigraph.custom_ops.blocks.formats.grids import grid
from trigraph.custom_ops.scripting import FLOAT, INT32, UINT8, Tensor, body, op


def _tensor(name: str) -> TensorProto:
    return numpy_helper.from_array(grid(name))


IQ1, IQ2_XXS, IQ2_XS, IQ2_S = _tensor("iq1"), _tensor("iq2_xxs"), _tensor("iq2_xs"), _tensor("iq2_s")
IQ3_XXS, IQ3_S = _tensor("iq3_xxs"), _tensor("iq3_s")


@body
def entries(table: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Levels of the entries whose indices have these bytes [N, blocks, indices]: [N, blocks, weights]."""
    index = op.Cast(low, to=INT32) + 256 * op.Cast(high, to=INT32)
    return op.Cast(op.Reshape(op.Gather(table, index), [0, 0, -1]), to=FLOAT)


@body
def even_signs(bits: Tensor) -> Tensor:
    """Seven bits [N, blocks, 7 x groups], and one more for an even number of them: [N, blocks, 8 x groups]."""
    seven = op.Cast(op.Reshape(bits, [0, 0, -1, 7]), to=INT32)
    eighth = op.Mod(op.ReduceSum(seven, [3], keepdims=1), 2)
    return op.Cast(op.Reshape(op.Concat(seven, eighth, axis=-1), [0, 0, -1]), to=UINT8)


@body
def signed(levels: Tensor, bits: Tensor) -> Tensor:
    return levels * (1.0 - 2.0 * number(op.Reshape(bits, op.Shape(levels))))


@body
def three_bits(bits: Tensor) -> Tensor:
    """Numbers of three bits each: [N, blocks, 3 x numbers] -> [N, blocks, numbers]."""
    low, middle, high = op.Split(op.Reshape(bits, [0, 0, -1, 3]), num_outputs=3, axis=-1)
    return op.Squeeze(low + middle * op.Cast(2, to=UINT8) + high * op.Cast(4, to=UINT8), [3])


@body
def scaled(values: Tensor, scale: Tensor, scales: Tensor, unit: float) -> Tensor:
    """Values times unit * scale * (2 s + 1), a scale for each block and an s for each group of its weights: rows.

    `scale` is [N, blocks, 1], and `scales` holds the numbers of a block one after the other.
    """
    groups = op.Reshape(scales, op.Concat(op.Shape(scale)[:2], [-1], axis=0))
    factors = op.Unsqueeze(scale * unit * (number(groups) * 2.0 + 1.0), [3])
    return op.Flatten(op.Reshape(values, op.Concat(op.Shape(groups), [-1], axis=0)) * factors)


@body
def unpack_iq2_xxs(rows: Tensor) -> Tensor:
    scale, packed = op.Split(blocks_of(rows, size=66), [2, 64], axis=-1)
    index, last = op.Split(blocks_of(packed, size=8), [4, 4], axis=-1)
    levels = entries(op.Constant(value=IQ2_XXS), index, index * op.Cast(0, to=UINT8))
    values = signed(levels, even_signs(fields(last, width=1, bits=1)[:, :, :28]))
    return scaled(values, half(scale), op.BitShift(last[:, :, 3:], 4, direction="RIGHT"), unit=0.125)


@body
def unpack_iq2_xs(rows: Tensor) -> Tensor:
    scale, packed, scales = op.Split(blocks_of(rows, size=74), [2, 64, 8], axis=-1)
    low, high = op.Split(blocks_of(packed, size=2), num_outputs=2, axis=-1)
    levels = entries(op.Constant(value=IQ2_XS), low, op.BitwiseAnd(high, 1))
    values = signed(levels, even_signs(fields(high, width=1, bits=1)[:, :, 1:]))
    return scaled(values, half(scale), fields(scales, width=1, bits=4), unit=0.125)


@body
def unpack_iq2_s(rows: Tensor) -> Tensor:
    scale, low, signs, high, scales = op.Split(blocks_of(rows, size=82), [2, 32, 32, 8, 8], axis=-1)
    levels = entries(op.Constant(value=IQ2_S), low, fields(high, width=1, bits=2))
    values = signed(levels, fields(signs, width=1, bits=1))
    return scaled(values, half(scale), fields(scales, width=1, bits=4), unit=0.125)


@body
def unpack_iq3_xxs(rows: Tensor) -> Tensor:
    scale, index, last = op.Split(blocks_of(rows, size=98), [2, 64, 32], axis=-1)
    words = blocks_of(last, size=4)
    levels = entries(op.Constant(value=IQ3_XXS), index, index * op.Cast(0, to=UINT8))
    values = signed(levels, even_signs(fields(words, width=1, bits=1)[:, :, :28]))
    return scaled(values, half(scale), op.BitShift(words[:, :, 3:], 4, direction="RIGHT"), unit=0.25)


@body
def unpack_iq3_s(rows: Tensor) -> Tensor:
    scale, low, high, signs, scales = op.Split(blocks_of(rows, size=110), [2, 64, 8, 32, 4], axis=-1)
    levels = entries(op.Constant(value=IQ3_S), low, fields(high, width=1, bits=1))
    values = signed(levels, fields(signs, width=1, bits=1))
    return scaled(values, half(scale), fields(scales, width=1, bits=4), unit=1.0)


@body
def shifted(levels: Tensor, minus: Tensor) -> Tensor:
    """Eight times the levels -1, 0 and 1, and one more, or one less where a group's bit says so."""
    groups = op.Reshape(levels, op.Concat([0], op.Shape(minus)[1:], [-1], axis=0))
    return groups * 8.0 + op.Unsqueeze(1.0 - 2.0 * number(minus), [3])


@body
def unpack_iq1_s(rows: Tensor) -> Tensor:
    scale, low, words = op.Split(blocks_of(rows, size=50), [2, 32, 16], axis=-1)
    bits = fields(blocks_of(words, size=2), width=1, bits=1)
    levels = entries(op.Constant(value=IQ1), blocks_of(low, size=4), three_bits(bits[:, :, :12]))
    return scaled(shifted(levels, bits[:, :, 15:]), half(scale), three_bits(bits[:, :, 12:15]), unit=0.125)


@body
def unpack_iq1_m(rows: Tensor) -> Tensor:
    low, high, words = op.Split(blocks_of(rows, size=56), [32, 16, 8], axis=-1)
    nibbles = fields(high, width=1, bits=4)
    levels = entries(op.Constant(value=IQ1), low, op.BitwiseAnd(nibbles, 7))
    # The highest nibbles of the words make the half.
    a, b, c, d = op.Split(
        op.BitShift(blocks_of(words, size=8)[:, :, 1::2], 4, direction="RIGHT"), num_outputs=4, axis=-1
    )
    scale = half(op.Concat(joined(a, b, bits=4), joined(c, d, bits=4), axis=-1))
    scales = three_bits(fields(blocks_of(words, size=2), width=1, bits=1)[:, :, :12])
    values = shifted(levels, op.BitShift(nibbles, 3, direction="RIGHT"))
    return scaled(values, scale, scales, unit=0.125)
