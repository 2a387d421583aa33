"""Random weights of every stored type, rows to multiply them with, and the operator that does."""

import ctypes
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from support.operators.run import LIBRARY, Operator
from trigraph.custom_ops import library_function
from trigraph.models.synth.blocks import HALVES, random_weights, spread_half

SPECIAL = np.array([0.0, -0.0, 6e-8, -6e-8, 6e-5, 1.0, -1.0, 65504.0, 0.0123, -0.037], np.float16)


def random_blocks(type: str, rows: int, blocks: int, seed: int) -> NDArray[np.uint8]:
    """Rows of random bits whose halves are finite: zeros, subnormals, extremes and ordinary numbers."""
    rng = np.random.default_rng(seed)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][1]
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    put_scales(type, raw, lambda: SPECIAL[rng.integers(0, len(SPECIAL), (rows, blocks))])
    return raw.reshape(rows, -1)


def put_scales(type: str, raw: NDArray[np.uint8], draw: Callable[[], NDArray[np.float16]]) -> None:
    """Gives blocks [rows, blocks, bytes] the scales that `draw` returns [rows, blocks], once for each half of a block.

    A type whose scale is an exponent gets the next power of two.
    """
    for offset in HALVES[type]:
        raw[..., offset : offset + 2] = draw()[..., None].view(np.uint8)
    if type == "IQ1_M":
        raw[..., 48:] = spread_half(draw()[..., None].view(np.uint8), raw[..., 48:])
    if type == "MXFP4":
        raw[..., 0] = 127 + np.frexp(draw().astype(np.float32))[1]
    if type == "NVFP4":
        for run in range(4):
            raw[..., run] = gguf.quants.NVFP4.fp32_to_ue4m3(np.abs(draw().astype(np.float32)))


def known_weights(rows: NDArray[np.uint8], type: str) -> NDArray[np.float32]:
    """What blocks stand for, by `gguf.quants`; of Q1_0, which it lacks, by the type's definition in ggml."""
    if type != "Q1_0":
        return np.asarray(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[type]), np.float32)
    weights = []
    for block in rows.reshape(-1, 18):
        d = np.float32(block[:2].view(np.float16)[0])
        bits = int.from_bytes(block[2:].tobytes(), "little")
        weights += [d if bits >> i & 1 else -d for i in range(128)]
    return np.array(weights, np.float32).reshape(len(rows), -1)


STORED = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
TYPES = [*STORED, *HALVES]
LEVELS = {"IQ3_XXS": 134, "IQ3_S": 134, "IQ2_XXS": 134, "IQ2_XS": 138, "IQ2_S": 138}
REPACKED = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210, **LEVELS}  # bytes of a repacked super-block
BLOCK = {type: gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][0] for type in TYPES}


def weights(type: str, rows: int, width: int, seed: int = 0) -> NDArray[Any]:
    """[rows, width] random weights as stored (BF16 as its bits)."""
    pieces = random_weights(type, rows * width, width**-0.5, np.random.PCG64DXSM(seed))
    stored = np.concatenate([piece.reshape(-1) for piece in pieces])
    return stored.view(STORED.get(type, np.uint8)).reshape(rows, -1)


def activations(rows: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    """Rows of different magnitudes, with a few outliers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, width)) * np.exp(rng.normal(size=(rows, 1)))
    x[:, rng.integers(0, width)] *= 20
    return x.astype(np.float32)


def repacked(type: str, plain: NDArray[np.uint8], rows: int) -> NDArray[np.uint8]:
    """[.., rows, row_bytes] as the library repacks them, `rows` at a time."""
    blocks = plain.shape[-1] // gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][1]
    out, count = np.full((*plain.shape[:-1], blocks * REPACKED[type]), 255, np.uint8), ctypes.c_int64
    repack = library_function("trigraph_repack")
    counts = (plain.size // plain.shape[-1] // rows, rows, blocks)
    repack(type.encode(), plain.ctypes.data_as(ctypes.c_void_p), *map(count, counts), out.ctypes)
    return out


def widths(type: str) -> tuple[int, ...]:
    sizes = {1: (1, 77, 1027), 32: (32, 288), 64: (64, 320), 128: (128, 640), 256: (256,)}[BLOCK[type]]
    return sizes if BLOCK[type] == 1 else (*sizes, 1024, 2048)


class MatMul:
    """The operator for one type; BF16 bits travel as the harness wants them."""

    def __init__(self, type: str, kind: str = "float32", threads: int = 1, library: str = LIBRARY) -> None:
        self.type = type
        example = self.tensor(np.zeros((1, 1), STORED.get(type, np.uint8)))
        inputs = [np.zeros((1, 1), np.float32), example]
        self.operator = Operator(
            "BlockMatMul", inputs, [np.float32], {"types": type, "activations": kind}, threads=threads, library=library
        )

    def tensor(self, weight: NDArray[Any]) -> Any:
        return ("bf16", weight) if self.type == "BF16" else weight

    def __call__(self, x: NDArray[np.float32], weight: NDArray[Any]) -> NDArray[np.float32]:
        shape = (len(x), len(weight))
        return np.asarray(self.operator(x, self.tensor(weight), output_shapes=[shape])[0])
