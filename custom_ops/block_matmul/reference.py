"""What BlockMatMul and GatedBlockMatMul compute, in NumPy."""

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops.blocks.formats.reference import group_size, quantise_activations, unpack

PLAIN_TYPES = ("F32", "F16", "BF16")


def block_matmul(
    x: NDArray[np.float32], weight: NDArray[np.generic], type: str, activations: str = "float32"
) -> NDArray[np.float32]:
    """y [T, N] = x [T, D] @ W^T for a weight [N, row bytes] of blocks (or [N, D] of F32, F16 or BF16 bits).

    BlockMatMul does so for up to four weights. With int8 activations each group of elements of a row of x is replaced
    by `scale * code` first; F32, F16 and BF16 weights always meet float32 activations. Sums are float64 here: a kernel
    differs by its float32 rounding.
    """
    if activations == "int8" and type not in PLAIN_TYPES:
        codes, scales = quantise_activations(x, group_size(type))
        values = (codes.astype(np.float64) * scales[..., None]).reshape(x.shape[0], -1)[:, : x.shape[1]]
    else:
        values = x.astype(np.float64)
    return (values @ unpack(weight, type).astype(np.float64).T).astype(np.float32)


def gated_block_matmul(
    gate: NDArray[np.float32],
    up: NDArray[np.float32] | None,
    weight: NDArray[np.generic],
    type: str,
    activations: str = "float32",
    scale: float = 1.0,
) -> NDArray[np.float32]:
    """(silu(scale * gate) * up) @ W^T for gate and up [T, D]: the second half of a feed-forward layer, [T, N].

    Without `up`, it is all ones.
    """
    wide = gate.astype(np.float64) * scale
    inner = wide / (1 + np.exp(-wide)) * (1 if up is None else up)
    return block_matmul(inner.astype(np.float32), weight, type, activations)
