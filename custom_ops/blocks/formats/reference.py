"""Block types and activation quantisation in NumPy: what the kernels compute."""

import numpy as np
from numpy.typing import NDArray

from trigraph.models.tensor_types import dequantize

SUPER_BLOCK = 256  # elements that share a scale when activations are int8


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


def quantise_activations(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Codes int8 [T, blocks, 256] and scales float32 [T, blocks] with x ~ scale * code, rounded to nearest even.

    The last block of a row is padded with zeros. A block that is not finite gets zeros and a scale of NaN; one whose
    largest magnitude is at most 1e-36 counts as zero.
    """
    rows, width = x.shape
    blocks = -(-width // SUPER_BLOCK)
    padded = np.zeros((rows, blocks * SUPER_BLOCK), np.float32)
    padded[:, :width] = x
    values = padded.reshape(rows, blocks, SUPER_BLOCK)
    finite = np.asarray(np.isfinite(values).all(axis=-1))
    values = np.where(finite[..., None], values, np.float32(0))
    largest = np.abs(values).max(axis=-1)
    usable = largest > np.float32(1e-36)
    inverse = np.float32(127) / np.where(usable, largest, np.float32(np.inf))
    codes = np.rint(values * inverse[..., None]).astype(np.int8)
    scales = np.where(finite, np.where(usable, largest / np.float32(127), np.float32(0)), np.float32(np.nan))
    return codes, scales.astype(np.float32)
