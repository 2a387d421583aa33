"""The promise of the attention operators: output and cache entry of a row are a function of the rows up to it, to the
bit, in any split into steps.

The oracle of the bits are the portable kernels, row by row; that of the mathematics, the NumPy reference.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.operators.attention_step import Attention, Heads, Step, assert_attended, make_step
from support.operators.run import LIBRARY, THREADS, same_bits
from trigraph.custom_ops.paged_attention.reference import paged_attention

_MOST_ROWS = 300 if LIBRARY == "cuda" else 600  # the emulator of a GPU is slow
SHAPES: list[dict[str, Any]] = [
    {"width": 256, "kv": 1, "group": 8, "page": 64},
    {"width": 128, "kv": 2, "group": 3, "page": 7},
    {"width": 48, "kv": 1, "group": 1, "page": 16},
    {"width": 80, "kv": 1, "group": 13, "page": 16},
]
HEADS = [Heads(dtype=dtype, **shape) for dtype in (np.float16, np.float32) for shape in SHAPES] + [
    Heads(width=256, kv=1, group=8, page=64, dtype=np.uint8),
    Heads(width=128, kv=2, group=3, page=7, dtype=np.uint8),
    Heads(width=96, kv=1, group=1, page=16, dtype=np.uint8),
    Heads(width=32, kv=2, group=13, page=16, dtype=np.uint8),
    Heads(width=320, kv=1, group=2, page=16, dtype=np.uint8),
    Heads(width=288, kv=1, group=1, page=16, dtype=np.uint8),
]
Cache = tuple[NDArray[Any], NDArray[Any]]


@functools.cache
def operators(isa: str, index: int, threads: int) -> Attention:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIGRAPH_ISA", "" if isa == "cuda" else isa)
        return Attention(HEADS[index], threads, library="cuda" if isa == "cuda" else "cpu")


def run(attention: Attention, rows: Step, cache: Cache) -> tuple[NDArray[np.float32], Cache]:
    step = replace(rows, past_key=cache[0], past_value=cache[1])
    cache = attention.write(step)
    return attention.attend(step, *cache), cache


@functools.cache
def decoded(index: int, rows: int, seed: int) -> tuple[Step, NDArray[np.float32], Cache]:
    """A text with room for rejected rows behind it, and what the portable kernels make of it, row by row."""
    heads, portable = HEADS[index], operators("portable", index, 1)
    text = make_step(heads, [rows], [0], seed)
    used = -(-rows // heads.page)
    free = sorted(set(range(len(text.past_key))) - set(text.page_table[0, :used].tolist()))
    text = replace(text, page_table=np.concatenate([text.page_table[:, :used], np.array([free], np.int32)], 1))
    outputs, cache = [], (text.past_key, text.past_value)
    for row in range(rows):
        y, cache = run(portable, text.part(0, row, 1), cache)
        outputs.append(y)
    wanted = np.concatenate(outputs)
    assert_attended(heads, text, wanted, paged_attention(*text.attend(*cache), **heads.rotary), 4e-6)
    return text, wanted, cache


def play(isa: str, index: int, threads: int, text: tuple[int, int], cuts: Sequence[tuple[int, int]]) -> None:
    """Runs a text of so many rows and a seed; a cut is how many rows a step keeps, and how many that are rejected."""
    (total, seed), attention = text, operators(isa, index, threads)
    whole, wanted, wanted_cache = decoded(index, total, seed)
    strangers = make_step(HEADS[index], [8], [0], seed=99)  # rows that are rejected
    cache: Cache = whole.past_key, whole.past_value
    outputs, length = [], 0
    room = len(whole.page_table[0]) * HEADS[index].page - total
    for most, rejected in [*cuts, (total, 0)]:
        keep, reject = min(most, total - length), min(rejected, room)
        if not keep + reject:
            continue
        rows = whole.part(0, length, keep)
        if reject:
            other = strangers.part(0, 0, reject)
            names = ("q_gate", "k", "v")
            joined = {name: np.concatenate([getattr(rows, name), getattr(other, name)]) for name in names}
            rows = replace(rows, **joined, cu_seqlens=np.array([0, keep + reject], np.int32))
        y, cache = run(attention, rows, cache)
        outputs.append(y[:keep])
        length += keep
    assert same_bits(np.concatenate(outputs), wanted)
    page = HEADS[index].page
    entries = whole.page_table[0, np.arange(total) // page], np.arange(total) % page
    for found, expected in zip(cache, wanted_cache, strict=True):
        assert same_bits(found[entries], expected[entries])


cut_lists = st.lists(st.tuples(st.integers(0, 9) | st.integers(0, _MOST_ROWS), st.integers(0, 7)), max_size=20)


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    index=st.integers(0, len(HEADS) - 1),
    threads=st.sampled_from(THREADS),
    rows=st.integers(1, _MOST_ROWS),
    cuts=cut_lists,
    seed=st.integers(0, 2**32 - 1),
)
@example(index=8, threads=1, rows=1, cuts=[], seed=1)  # one query in eight is near a tie
def test_any_split_has_the_bits_of_single_rows(
    isa: str, index: int, threads: int, rows: int, cuts: list[tuple[int, int]], seed: int
) -> None:
    play(isa, index, threads, (rows, seed), cuts)


@pytest.mark.parametrize("index", range(len(HEADS)), ids=lambda i: f"{HEADS[i].width}-{HEADS[i].dtype.__name__}")
def test_across_splits_of_the_softmax(isa: str, index: int) -> None:
    play(isa, index, 2, (270, 1), [(200, 0), (5, 3), (48, 0), (3, 5), (1, 0), (0, 7), (8, 0)])


@pytest.mark.parametrize("index", [i for i, heads in enumerate(HEADS) if heads.dtype == np.uint8])
def test_blocks_of_any_bytes(isa: str, index: int) -> None:
    """Scales that are negative, too small to be normal, zero or not finite, and codes down to -128."""
    heads = HEADS[index]
    step = make_step(heads, [1, 20, 3], [30, 290, 0])
    rng = np.random.default_rng(index)
    key, value = (rng.integers(0, 256, step.past_key.shape, np.uint8) for _ in range(2))
    for cache in (key, value):
        high = cache.reshape(*cache.shape[:-1], -1, 34)[..., 1]
        high[:] = np.where(high & 0x7F > 0x50, high & 0x87, high)
    value[step.page_table[1, 0], 5, 0, :2] = 0, 0x7C
    key[step.page_table[1, 2], 3, 0, :2] = 0, 0xFC
    found, wanted = (operators(name, index, 1).attend(step, key, value) for name in (isa, "portable"))
    assert np.isnan(wanted).any() and not np.isnan(wanted).all()
    assert same_bits(np.nan_to_num(found, nan=7e33), np.nan_to_num(wanted, nan=7e33))
