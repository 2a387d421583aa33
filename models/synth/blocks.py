"""Random weights written directly as blocks: nothing is quantised, so a file costs little more than its bytes.

The quants of a block are raw random bits; only its scales are chosen, from a table of headers, so that the dequantised
weights have mean zero and the wanted root mean square.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import cache
from statistics import NormalDist

import gguf
import numpy as np
from numpy.typing import NDArray

from trigraph.models.tensor_types import dequantize

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

HALVES: dict[str, tuple[int, ...]] = {
    "Q4_K": (0, 2),
    "Q6_K": (208,),
    "Q8_0": (0,),
    "Q5_K": (0, 2),
    "Q3_K": (108,),
    "Q2_K": (80, 82),
    "IQ4_XS": (0,),
    "Q4_0": (0,),
    "Q5_1": (0, 2),
    "IQ4_NL": (0,),
    "Q5_0": (0,),
    "Q4_1": (0, 2),
    "MXFP4": (),  # its scale is an exponent
    "IQ3_S": (0,),
    "IQ3_XXS": (0,),
    "IQ2_S": (0,),
    "IQ2_XS": (0,),
    "IQ2_XXS": (0,),
    "IQ1_M": (),  # its half lies in four nibbles
    "IQ1_S": (0,),
    "TQ2_0": (64,),
    "TQ1_0": (52,),
    "NVFP4": (),  # its scales are floats of eight bits
    "Q1_0": (0,),
}
"""Byte offsets of the half-precision fields of a block."""

_HEADERS = 1 << 12  # distinct block headers of one tensor type and scale
_CHUNK_BYTES = 1 << 22


def random_bits(seed: int, name: str) -> np.random.PCG64DXSM:
    """The bit stream of one tensor: a function of the file's seed and the tensor's name only."""
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), "<u4")
    return np.random.PCG64DXSM(np.random.SeedSequence([seed, *map(int, words)]))


def uniform(bits: np.random.PCG64DXSM, count: int) -> NDArray[np.float64]:
    """`count` numbers in (0, 1)."""
    return (np.asarray(bits.random_raw(count)) >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54


def normal(bits: np.random.PCG64DXSM, count: int) -> Floats:
    """`count` standard normal numbers (of 65,536 distinct values)."""
    return np.take(_normal_table(), _raw_bytes(bits, 2 * count).view("<u2"))


def random_weights(
    type_name: str, count: int, rms: float, bits: np.random.PCG64DXSM, chunk_bytes: int = _CHUNK_BYTES
) -> Iterator[Bytes]:
    """`count` weights of a ggml type in pieces of about `chunk_bytes`; their dequantised root mean square is `rms`."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    fields = _float_fields(type_name, rms) if block == 1 else _block_fields(type_name, rms / _unit_rms(type_name))
    step = max(1, chunk_bytes // size)
    for first in range(0, count // block, step):
        yield _fill(fields, size, min(step, count // block - first), bits)


def _raw_bytes(bits: np.random.PCG64DXSM, count: int) -> Bytes:
    return np.asarray(bits.random_raw(-(-count // 8))).astype("<u8", copy=False).view(np.uint8)[:count]


def _fill(fields: Mapping[int, Bytes], size: int, count: int, bits: np.random.PCG64DXSM) -> Bytes:
    """`count` blocks of `size` random bytes; at each field's offset an entry of the field's table."""
    blocks = _raw_bytes(bits, count * size)
    index = _raw_bytes(bits, 2 * count).view("<u2")
    for offset, table in fields.items():
        entries, width = table.shape
        place = np.dtype({"names": ["x"], "formats": [f"V{width}"], "offsets": [offset], "itemsize": size})
        blocks.view(place)["x"] = table.view(f"V{width}")[:, 0][index & np.uint16(entries - 1)]
    return blocks


@cache
def _normal_table() -> Floats:
    """The 65,536 evenly spaced quantiles of the standard normal distribution."""
    quantile = NormalDist().inv_cdf
    return np.array([quantile((i + 0.5) / 65536) for i in range(65536)], np.float32)


def _float_fields(type_name: str, rms: float) -> dict[int, Bytes]:
    values = _normal_table() * np.float32(rms)
    stored = gguf.quants.quantize(values[None], gguf.GGMLQuantizationType[type_name])
    return {0: stored.view(np.uint8).reshape(len(values), -1)}


def _half(values: NDArray[np.float64]) -> Bytes:
    return values.astype("<f2")[:, None].view(np.uint8)


def _block_fields(type_name: str, scale: float) -> dict[int, Bytes]:
    """Tables of header bytes by their offset in the block, for scales about `scale`.

    Symmetric quants (and 6-bit or 8-bit signed scales, left to the random bits) centre themselves once the scale has a
    random sign. The others get the minimum that centres them: half the range of their quants.
    """
    rng = random_bits(0, f"headers of {type_name}")
    d = scale * (0.75 + 0.5 * uniform(rng, _HEADERS))
    signed = np.where(uniform(rng, _HEADERS) < 0.5, -d, d)
    match type_name:
        case "Q4_1":
            return {0: np.hstack([_half(d), _half(-7.5 * d)])}
        case "Q5_1":
            return {0: np.hstack([_half(d), _half(-15.5 * d)])}
        case "Q2_K":
            scales, minima = _paired_scales(rng, 16, bits=4)
            return {0: scales | minima << np.uint8(4), 80: np.hstack([_half(d), _half(1.5 * d)])}
        case "Q4_K":
            return {0: np.hstack([_half(d), _half(7.5 * d), _packed_scales(rng)])}
        case "Q5_K":
            return {0: np.hstack([_half(d), _half(15.5 * d), _packed_scales(rng)])}
        case "MXFP4":
            return {0: _exponents(scale, rng)}
        case "NVFP4":
            return {0: _eight_bit_scales(scale, rng)}
        case "IQ1_M":
            return {48: spread_half(_half(signed), _raw_bytes(rng, 8 * _HEADERS).reshape(_HEADERS, 8))}
    (offset,) = HALVES[type_name]
    return {offset: _half(signed)}


def spread_half(half: Bytes, words: Bytes) -> Bytes:
    """The last bytes of IQ1_M blocks [..., 8]: four words, whose highest nibbles become those of a half [..., 2]."""
    words[..., 1::2] &= np.uint8(15)
    words[..., 1::2] |= np.stack([half << np.uint8(4), half & np.uint8(0xF0)], axis=-1).reshape(*half.shape[:-1], 4)
    return words


def _exponents(scale: float, rng: np.random.PCG64DXSM) -> Bytes:
    """Powers of two with the root mean square `scale`, as exponents of MXFP4, which stand for halves of them."""
    low = math.floor(math.log2(scale))
    more = uniform(rng, _HEADERS) < (scale**2 / 4**low - 1) / 3
    exponents: Bytes = np.asarray(128 + low + more, np.uint8)
    return exponents[:, None]


def _eight_bit_scales(scale: float, rng: np.random.PCG64DXSM) -> Bytes:
    """Four scales of NVFP4 a block: floats of four bits of exponent and three of fraction."""
    scales = np.float32(scale) * (0.75 + 0.5 * uniform(rng, 4 * _HEADERS)).astype(np.float32)
    codes: Bytes = gguf.quants.NVFP4.fp32_to_ue4m3(scales)
    return codes.reshape(_HEADERS, 4)


def _paired_scales(rng: np.random.PCG64DXSM, count: int, bits: int) -> tuple[Bytes, Bytes]:
    """Unsigned scales in the upper three quarters of their range, and minima near them: a sub-block stays centred."""
    top = 1 << bits
    scales = top // 4 + np.floor(uniform(rng, _HEADERS * count) * (top - top // 4))
    minima = scales + np.floor(uniform(rng, _HEADERS * count) * 3 - 1) * (top // 16)
    shape = (_HEADERS, count)
    return scales.astype(np.uint8).reshape(shape), np.clip(minima, 0, top - 1).astype(np.uint8).reshape(shape)


def _packed_scales(rng: np.random.PCG64DXSM) -> Bytes:
    """Eight 6-bit scales and minima in the 12 bytes of Q4_K and Q5_K: the first four of each whole, with the upper two
    bits of the last four above them, then the lower four bits of the last four."""
    scales, minima = _paired_scales(rng, 8, bits=6)
    return np.hstack(
        [
            scales[:, :4] | (scales[:, 4:] & np.uint8(0x30)) << np.uint8(2),
            minima[:, :4] | (minima[:, 4:] & np.uint8(0x30)) << np.uint8(2),
            (scales[:, 4:] & np.uint8(0x0F)) | minima[:, 4:] << np.uint8(4),
        ]
    )


@cache
def _unit_rms(type_name: str) -> float:
    """Root mean square of the weights that a scale of one gives, measured."""
    qtype = gguf.GGMLQuantizationType[type_name]
    blocks = _fill(_block_fields(type_name, 1.0), gguf.GGML_QUANT_SIZES[qtype][1], _HEADERS, random_bits(0, type_name))
    weights = dequantize(blocks, type_name)
    return float(np.sqrt(np.mean(np.square(weights, dtype=np.float64))))
