"""What PagedIndexWrite and PagedSelect compute, in NumPy and float64: a kernel differs by its float32 rounding."""

from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops.paged_attention.reference import Rotary, _norm_rotate, _positions, _turning

Array = NDArray[np.float32]
Cache = NDArray[Any]
Ints = NDArray[np.int32]


def paged_index_write(
    k: Array,
    k_norm: Array,
    past_index: Cache,
    cu_seqlens: Ints,
    past_lens: Ints,
    page_table: Ints,
    *,
    group: int,
    **rotary: Unpack[Rotary],
) -> Cache:
    """The index [pages, page size, D] with an entry for each row of k [T, D], at its position.

    The last position of a group of `group` holds the mean of the group's keys, the earlier ones as the index stores
    them, normed and turned by the group's first position. Other positions hold their own key.
    """
    index, page = past_index.copy(), past_index.shape[1]
    sequence, position = _positions(cu_seqlens, past_lens)
    for row, (s, p) in enumerate(zip(sequence, position, strict=True)):
        keys = k[row].astype(np.float64)
        if p % group == group - 1:
            earlier = np.arange(p - group + 1, p)
            stored = index[page_table[s, earlier // page], earlier % page].astype(np.float64)
            pooled = (stored.sum(axis=0) + keys) / group
            first = np.array([p - group + 1])
            keys = _norm_rotate(pooled[None, None], k_norm, _turning(first, None, rotary), rotary)[0, 0]
        index[page_table[s, p // page], p % page] = keys
    return index


def paged_select(
    q: Array,
    q_norm: Array,
    index: Cache,
    cu_seqlens: Ints,
    past_lens: Ints,
    page_table: Ints,
    *,
    group: int,
    top: int,
    **rotary: Unpack[Rotary],
) -> Ints:
    """The `top` best whole groups of each row of q [R, H * D], in ascending order, then -1: int32 [R, top].

    The score of a group is the sum over heads of what is positive of their products with its key; of equal ones the
    first are taken.
    """
    page, width = index.shape[1], index.shape[2]
    sequence, position = _positions(cu_seqlens, past_lens)
    turned = _norm_rotate(q.reshape(len(q), -1, width), q_norm, _turning(position, None, rotary), rotary)
    found = np.full((len(q), top), -1, np.int32)
    for row, (s, p) in enumerate(zip(sequence, position, strict=True)):
        last = np.arange((p + 1) // group) * group + group - 1
        keys = index[page_table[s, last // page], last % page].astype(np.float64)
        scores = np.maximum(turned[row] @ keys.T, 0).sum(axis=0)
        chosen = np.sort(np.argsort(-scores, kind="stable")[:top])
        found[row, : len(chosen)] = chosen
    return found
