"""Block types and activation quantisation in NumPy: what the kernels compute."""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from trigraph.models.tensor_types import dequantize

SUPER_BLOCK = 256


def group_size(type: str) -> int:
    """Elements of an int8 activation row that share a scale where they meet blocks of a type: 256 or 32."""
    return SUPER_BLOCK if GGML_QUANT_SIZES[GGMLQuantizationType[type]][0] == SUPER_BLOCK else 32


def unpack(rows: NDArray[np.generic], type: str) -> NDArray[np.float32]:
    """Weights as float32, exactly as ggml defines them.

    `rows` is uint8 [..., row bytes] for block types, float32 or float16 [..., D] for F32 and F16, and the uint16 bits
    [..., D] for BF16.
    """
    if type in ("F32", "F16"):
        return rows.astype(np.float32)
    if type == "BF16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return dequantize(rows, type)


def quantise_activations(x: NDArray[np.float32], group: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Codes int8 [T, groups, group] and scales float32 [T, groups] with x ~ scale * code, rounded to nearest even.

    The last group of a row is padded with zeros. A group that is not finite gets zeros and a scale of NaN; one whose
    largest magnitude is at most 1e-36 counts as zero.
    """
    rows, width = x.shape
    groups = -(-width // group)
    padded = np.zeros((rows, groups * group), np.float32)
    padded[:, :width] = x
    values = padded.reshape(rows, groups, group)
    finite = np.asarray(np.isfinite(values).all(axis=-1))
    values = np.where(finite[..., None], values, np.float32(0))
    largest = np.abs(values).max(axis=-1)
    usable = largest > np.float32(1e-36)
    inverse = np.float32(127) / np.where(usable, largest, np.float32(np.inf))
    codes = np.rint(values * inverse[..., None]).astype(np.int8)
    scales = np.where(finite, np.where(usable, largest / np.float32(127), np.float32(0)), np.float32(np.nan))
    return codes, scales.astype(np.float32)
