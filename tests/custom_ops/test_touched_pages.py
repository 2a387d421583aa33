"""What attention over lists reads of a long text: the memory that a decode touches."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.run import Operator

KV_HEADS, WIDTH, GROUP, TOP, PAGE = 2, 256, 4, 512, 64  # of Qwen3.8-Flash-Next
GROUP_BYTES = GROUP * KV_HEADS * WIDTH * 2


class Untouched:
    """A cache of keys or values [pages, page, heads, width] that no memory stands behind until it is read."""

    def __init__(self, positions: int) -> None:
        self.memory = mmap.mmap(-1, positions * KV_HEADS * WIDTH * 2)
        self.memory.madvise(15)  # MADV_NOHUGEPAGE
        self.array = np.frombuffer(self.memory, np.float16).reshape(-1, PAGE, KV_HEADS, WIDTH)

    def touched(self) -> NDArray[np.bool_]:
        """Of each of the system's pages, whether it was read."""
        pages = np.zeros(len(self.memory) // mmap.PAGESIZE, np.uint8)
        arguments = (ctypes.c_void_p(self.array.ctypes.data), ctypes.c_size_t(len(self.memory)))
        assert ctypes.CDLL(None).mincore(*arguments, pages.ctypes.data_as(ctypes.c_void_p)) == 0
        return (pages & 1).astype(np.bool_)


@pytest.mark.skipif(sys.platform != "linux" or mmap.PAGESIZE != GROUP_BYTES, reason="a page of memory is no group")
@pytest.mark.parametrize("context", [32768, 262144])
def test_a_decode_reads_its_groups_alone(context: int) -> None:
    """Those of its list, and those after the last whole one: 513 pages of keys, and of values, at any length."""
    key, value = Untouched(context), Untouched(context)
    rng, heads = np.random.default_rng(context), 24
    past = context - 2  # the row and two before it follow the last whole group
    chosen = np.sort(rng.permutation(past // GROUP)[:TOP]).astype(np.int32)[None]
    table = rng.permutation(context // PAGE).astype(np.int32)[None]
    inputs: list[Any] = [
        *(rng.standard_normal((1, 2 * heads * WIDTH), dtype=np.float32), np.ones(WIDTH, np.float32)),
        *(key.array, value.array, np.array([0, 1], np.int32), np.array([past], np.int32), table, None, chosen),
    ]
    attributes = {"rope_dims": 64, "rope_theta": 1e7, "eps": 1e-6, "group": GROUP}
    attend = Operator("PagedAttention", inputs, [np.float32], attributes, threads=2, library="cpu")
    assert np.isfinite(attend(*inputs, output_shapes=[(1, heads * WIDTH)])[0]).all()
    groups = np.append(chosen[0], past // GROUP)
    in_cache = table[0][groups * GROUP // PAGE] * (PAGE // GROUP) + groups % (PAGE // GROUP)
    for cache in (key, value):
        np.testing.assert_array_equal(np.flatnonzero(cache.touched()), np.sort(in_cache))
