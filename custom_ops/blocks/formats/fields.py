"""Fields of blocks in standard ONNX operators: what functions that unpack are made of."""

import numpy as np
from onnx import numpy_helper

from trigraph.custom_ops.scripting import FLOAT, INT32, INT64, UINT8, Tensor, body, op

# A half by its high byte: the value where the low byte is 0, and what each step of the low byte adds.
_HIGH = np.arange(256)
_STEP = np.where(_HIGH < 128, 1, -1) * np.exp2(np.maximum(_HIGH >> 2 & 31, 1) - 25.0)
HALF_STEP = numpy_helper.from_array(_STEP.astype(np.float32))
HALF_BASE = numpy_helper.from_array((_STEP * ((_HIGH & 3) * 256 + 1024 * ((_HIGH >> 2 & 31) > 0))).astype(np.float32))


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
def levels(codes: Tensor, table: Tensor) -> Tensor:
    """What codes stand for in a table of 16: nibbles of 16 bytes for each 32 weights, the low ones first."""
    return op.Gather(table, op.Cast(fields(codes, width=16, bits=4), to=INT32))
