"""What LayerNorm computes, in NumPy."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def layer_norm(x: Floats, weight: Floats, bias: Floats, *, eps: float) -> Floats:
    """y = (x - mean) / sqrt(variance + eps) * weight + bias over the rows of x [T, D].

    Sums are float64 here: a kernel differs by its float32 rounding.
    """
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    scaled = centred / np.sqrt(np.mean(centred * centred, -1, keepdims=True) + eps)
    y: Floats = (scaled * weight + bias).astype(np.float32)
    return y
