"""What TopToken and TopTokens compute, in NumPy."""

import numpy as np
from numpy.typing import NDArray


def top_token(logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The likeliest token of each row of logits [T, V], ties to the lowest id, and its probability by softmax: [T]."""
    wide = logits.astype(np.float64)
    probability = 1 / np.exp(wide - wide.max(axis=-1, keepdims=True)).sum(axis=-1)
    return logits.argmax(axis=-1), probability.astype(np.float32)


def top_tokens(logits: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The `count` largest of each row of logits [T, V], in falling order, ties to the lowest id, and their ids: [T, C].

    NaN counts as -infinity.
    """
    numbers = np.where(np.isnan(logits), -np.inf, logits).astype(np.float32)
    ids = np.argsort(-numbers, axis=-1, kind="stable")[:, :count]
    return np.take_along_axis(numbers, ids, axis=-1), ids
