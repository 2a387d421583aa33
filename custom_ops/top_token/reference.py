"""What TopToken computes, in NumPy."""

import numpy as np
from numpy.typing import NDArray


def top_token(logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The likeliest token of each row of logits [T, V], ties to the lowest id, and its probability by softmax: [T]."""
    wide = logits.astype(np.float64)
    probability = 1 / np.exp(wide - wide.max(axis=-1, keepdims=True)).sum(axis=-1)
    return logits.argmax(axis=-1), probability.astype(np.float32)
