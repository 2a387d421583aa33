"""What Router computes, in NumPy."""

import numpy as np
from numpy.typing import NDArray


def router(logits: NDArray[np.float32], *, k: int, normalize: bool) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k experts of each row of logits [T, X] with the largest logits, the lowest id first among equal ones.

    Returns their ids [T, k] and weights [T, k]: softmax of the k logits when `normalize`, otherwise the k entries of
    the softmax of all. (Normalised weights are often given as p_i / sum of the k largest p for p = softmax(logits),
    which is the same.)
    """
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    chosen = np.take_along_axis(logits, ids, axis=-1).astype(np.float64)
    largest = chosen[:, :1]
    among = chosen if normalize else logits.astype(np.float64)
    weights = np.exp(chosen - largest) / np.exp(among - largest).sum(axis=-1, keepdims=True)
    return ids.astype(np.int64), weights.astype(np.float32)
