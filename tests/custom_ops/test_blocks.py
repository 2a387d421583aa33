"""Unpacking of block types to the bit on every instruction set, and the quantisation of activations."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.block_weights import known_weights, random_blocks
from support.operators.run import Operator, same_bits
from trigraph.custom_ops.blocks.formats.grids import header
from trigraph.custom_ops.blocks.formats.reference import SUPER_BLOCK, group_size, quantise_activations, unpack
from trigraph.models.synth.blocks import HALVES
from trigraph.models.tensor_types import BLOCK_TYPES


def gather_all(type: str, table: Any) -> NDArray[np.float32]:
    operator = Operator("BlockGather", [np.zeros(1, np.int64), table], [np.float32], {"type": type})
    rows = len(table[1] if isinstance(table, tuple) else table)
    return np.asarray(operator(np.arange(rows), table)[0])


@pytest.mark.parametrize("type", HALVES)
def test_unpack_is_exact(isa: str, type: str) -> None:
    for blocks, seed in ((1, 0), (9, 1)):
        table = random_blocks(type, 63, blocks, seed)
        expected = known_weights(table, type)
        assert same_bits(gather_all(type, table), expected)
        assert same_bits(unpack(table, type), expected)


def test_every_exponent(isa: str) -> None:
    """The scale of MXFP4 is a power of two: subnormal for the first, and some products are infinite for the last."""
    table = random_blocks("MXFP4", 256, 2, seed=4)
    table[:, 0] = np.arange(256)
    with np.errstate(over="ignore"):
        expected = gguf.quants.dequantize(table, gguf.GGMLQuantizationType.MXFP4)
    assert same_bits(gather_all("MXFP4", table), expected)


def test_every_eight_bit_scale(isa: str) -> None:
    """Of NVFP4: subnormal ones, those with a sign that counts for nothing, and 127, which is zero."""
    table = random_blocks("NVFP4", 256, 4, seed=5)
    for run in range(4):
        table[:, run] = table[:, 36 + (run + 1) % 4] = np.arange(256)
    assert same_bits(gather_all("NVFP4", table), gguf.quants.dequantize(table, gguf.GGMLQuantizationType.NVFP4))


def test_grids_are_those_of_gguf() -> None:
    root = Path(__file__).parents[2]
    assert (root / "custom_ops" / "blocks" / "formats" / "grids.h").read_text() == "\n".join(header()) + "\n"


def test_unpack_plain_types(isa: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)[:, :255]
    halves = bits.view(np.float16)
    finite = np.isfinite(halves)
    assert np.array_equal(gather_all("F16", halves)[finite], halves.astype(np.float32)[finite])
    assert same_bits(gather_all("BF16", ("bf16", bits)), (bits.astype(np.uint32) << 16).view(np.float32))
    floats = np.random.default_rng(2).normal(size=(3, 77)).astype(np.float32)
    assert same_bits(gather_all("F32", floats), floats)


@pytest.mark.parametrize("group", [32, SUPER_BLOCK])
def test_quantised_activations_are_near(group: int) -> None:
    x = np.random.default_rng(3).normal(size=(5, 3 * SUPER_BLOCK + 32)).astype(np.float32)
    codes, scales = quantise_activations(x, group)
    assert codes.shape == (5, -(-x.shape[1] // group), group) and scales.shape == codes.shape[:2]
    restored = (codes * scales[..., None]).reshape(5, -1)[:, : x.shape[1]]
    step = np.repeat(scales, group, axis=1)[:, : x.shape[1]]
    assert (np.abs(restored - x) <= 0.5001 * step).all()
    assert (np.abs(codes).max(axis=-1) == 127).all()


@pytest.mark.parametrize("group", [32, SUPER_BLOCK])
def test_quantised_activations_of_special_values(group: int) -> None:
    x = np.zeros((4, SUPER_BLOCK), np.float32)
    x[1, 3], x[2, 5], x[3, 7] = np.nan, np.inf, 1e-38
    codes, scales = quantise_activations(x, group)
    assert not codes.any()
    assert np.array_equal(scales[:, 0], np.array([0, np.nan, np.nan, 0], np.float32), equal_nan=True)
    assert not scales[:, 1:].any()


def test_groups_of_types() -> None:
    """Types with blocks of 256 share a scale for as many activations, all others for 32."""
    groups = {type: group_size(type) for type in BLOCK_TYPES}
    blocks = {type: gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][0] for type in BLOCK_TYPES}
    assert groups == {type: 256 if block == 256 else 32 for type, block in blocks.items()}
    assert groups["Q8_0"] == groups["NVFP4"] == groups["Q1_0"] == 32 and groups["Q4_K"] == groups["TQ2_0"] == 256
