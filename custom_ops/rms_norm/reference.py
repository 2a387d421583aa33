"""What RMSNorm and JoinedRMSNorm compute, in NumPy."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def rms_norm(x: Floats, weight: Floats, residual: Floats | None = None, *, eps: float) -> tuple[Floats, Floats]:
    """y = s / sqrt(mean(s^2) + eps) * weight over the rows of s = x + residual [T, D]; returns y and s.

    The sum of squares is float64 here: a kernel differs by its float32 rounding.
    """
    total = x if residual is None else x + residual
    wide = total.astype(np.float64)
    y = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps) * weight
    return y.astype(np.float32), total


def joined_rms_norm(x: Floats, weight: Floats, other: Floats, other_weight: Floats, *, eps: float) -> Floats:
    """The norms of the rows of x [T, D] and of other [T, E], side by side: [T, D + E]."""
    return np.concatenate([rms_norm(x, weight, eps=eps)[0], rms_norm(other, other_weight, eps=eps)[0]], axis=1)
