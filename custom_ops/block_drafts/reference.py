"""What block drafters do with the rows of their blocks, in NumPy.

T rows of S blocks laid end to end: block s has the rows cu_seqlens[s] to cu_seqlens[s + 1], at least one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating[Any]]
Ints: TypeAlias = NDArray[np.int32]


def _places(cu_seqlens: Ints) -> NDArray[np.int64]:
    """The place of each row in its block."""
    return np.concatenate([np.arange(count) for count in np.diff(cu_seqlens)])


def block_convolution(x: Array, kernels: Array, base: Array, cu_seqlens: Ints, *, first: int, taps: int) -> Array:
    """Each row of x [T, D] and the taps - 1 before it in its block, times their coefficients, added up: float64 [T, D].

    The coefficients of the row itself, the one before and so on are base [N, D] + kernels [T, N * G], from `first` on;
    D / G channels beside each other share one of the kernels.
    """
    shared = np.repeat(kernels.reshape(len(x), len(base), -1), x.shape[1] * len(base) // kernels.shape[1], 2)
    coefficients, places = base.astype(np.float64) + shared, _places(cu_seqlens)
    out = np.zeros(x.shape, np.float64)
    for tap in range(taps):
        rows = np.flatnonzero(places >= tap)
        out[rows] += coefficients[rows, first + tap] * x[rows - tap]
    return out


def candidate_edges(
    scores: Array, known: Array, before: Array, after: Array, cu_seqlens: Ints, gate: Array | None = None, *,
    drafting: int,
) -> Array:  # fmt: skip
    """The score of each candidate (last) of a row after each of the row before: float64 [T, C, C].

    That is its own in scores [T, C] and the product of both ones' rows: of `after` [T * C, R], and of `before`
    [T * C, R], which `gate` [T, R] multiplies where it is given. Up to the row `drafting` of a block, the token that
    stands before it is the one that the block begins with, whose row is in `known` [T, R].
    """
    rows, count = scores.shape
    places, edges = _places(cu_seqlens), np.empty((rows, count, count))
    for row, place in enumerate(places):
        begins = place <= drafting
        left = np.repeat(known[[row - place]], count, 0) if begins else before[(row - 1) * count : row * count]
        left = left.astype(np.float64) * (1 if gate is None else gate[row])
        edges[row] = scores[row] + left @ after[row * count : (row + 1) * count].T
    return edges
