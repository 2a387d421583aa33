"""The ggml types that kernels read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TENSOR_TYPES = (
    "Q4_K", "Q6_K", "Q8_0", "Q5_K", "F32", "Q3_K", "BF16", "Q2_K", "IQ4_XS", "F16", "Q4_0", "Q5_1", "IQ4_NL", "Q5_0",
    "Q4_1", "MXFP4", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0",
    "NVFP4", "Q1_0",
)  # fmt: skip
"""In the order in which a synthetic file of mixed types takes them."""
FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK_TYPES = tuple(name for name in TENSOR_TYPES if name not in FLOAT_TYPES)
"""A row is a sequence of blocks, each with scales of its own."""


def dequantize(rows: NDArray[Any], type_name: str) -> NDArray[np.float32]:
    """Rows of stored weights [..., row bytes, or elements of a float type] as float32 [..., D], as ggml defines them.

    Raises NotImplementedError for a type that `gguf.quants` does not know either.
    """
    import numpy as np
    from gguf import GGMLQuantizationType, quants

    if type_name != "Q1_0":  # which gguf.quants lacks
        return np.asarray(quants.dequantize(rows, GGMLQuantizationType[type_name]), np.float32)
    blocks = rows.reshape(*rows.shape[:-1], -1, 18)
    scales = blocks[..., :2].copy().view("<f2").astype(np.float32)
    signs = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little").astype(np.float32) * 2 - 1
    return np.asarray(signs * scales, np.float32).reshape(*rows.shape[:-1], -1)
