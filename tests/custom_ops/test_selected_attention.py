"""PagedAttention over lists of groups: the reference nearly, and the bits of the portable kernel for each row alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.attention_step import Attention, Heads, Step, assert_close, make_step
from support.operators.row_bits import portable_kernels
from support.operators.run import LIBRARY, THREADS, Operator, same_bits
from trigraph.custom_ops.paged_attention.reference import paged_attention

GROUP = 4
HEADS = [
    Heads(width=256, kv=2, group=12, page=64),
    Heads(width=128, kv=1, group=3, page=8),
    Heads(width=64, kv=2, group=5, page=16),
    Heads(width=48, kv=1, group=2, page=16),
    Heads(width=256, kv=1, group=8, page=64, dtype=np.float32),
    Heads(width=80, kv=2, group=13, page=4, dtype=np.float32),
    Heads(width=96, kv=1, group=3, page=16, dtype=np.uint8),
]


def lists(step: Step, top: int, seed: int) -> NDArray[np.int32]:
    """Random groups of each row, and what no group can be where it sees all."""
    rng, found = np.random.default_rng(seed), np.full((len(step.q_gate), top), -7, np.int32)
    row = 0
    for past, length in zip(step.past_lens, np.diff(step.cu_seqlens), strict=True):
        for position in range(past, past + length):
            if (whole := (position + 1) // GROUP) > top:
                found[row] = np.sort(rng.permutation(whole)[:top])
            row += 1
    return found


def attend(
    heads: Heads, step: Step, groups: NDArray[np.int32], threads: int = 1, library: str = LIBRARY
) -> NDArray[np.float32]:
    inputs = [*step.attend(step.past_key, step.past_value), None, groups]
    operator = Operator(
        "PagedAttention", inputs, [np.float32], heads.attributes | {"group": GROUP}, threads=threads, library=library
    )
    rows, columns = step.q_gate.shape
    return operator(*inputs, output_shapes=[(rows, columns // 2)])[0]


def written(heads: Heads, lengths: list[int], pasts: list[int], seed: int) -> Step:
    """A step whose own entries are in the cache."""
    step = make_step(heads, lengths, pasts, seed)
    key, value = Attention(heads, library="cpu").write(step)
    return replace(step, past_key=key, past_value=value)


@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads.width}-{heads.group}-{heads.dtype.__name__}")
@pytest.mark.parametrize(
    ("top", "lengths", "pasts"),
    [
        (3, [1], [40]),
        (3, [4], [9]),
        (70, [2, 5], [279, 290]),
        (130, [1], [700]),
        (2, [9, 1, 3], [0, 600, 30]),
    ],
)
def test_rows_see_their_groups(heads: Heads, top: int, lengths: list[int], pasts: list[int]) -> None:
    """And the positions behind the last whole one; across the length from which they choose, and splits of softmax."""
    step = written(heads, lengths, pasts, seed=top)
    groups = lists(step, top, seed=1)
    found = attend(heads, step, groups)
    wanted = paged_attention(
        step.q_gate, step.q_norm, step.past_key, step.past_value, step.cu_seqlens, step.past_lens, step.page_table,
        None, groups, group=GROUP, **heads.rotary,
    )  # fmt: skip
    assert_close(found, wanted, 4e-6)
    for threads in THREADS[1:]:
        assert same_bits(attend(heads, step, groups, threads), found)
    row = 0
    with portable_kernels():
        for sequence, length in enumerate(lengths):
            for i in range(length):
                alone = attend(heads, step.part(sequence, i, 1), groups[row : row + 1], library="cpu")
                assert same_bits(alone[0], found[row]), (sequence, i)
                row += 1


@pytest.mark.parametrize("heads", HEADS[:2], ids=lambda heads: str(heads.width))
def test_rows_that_see_all_have_the_bits_without_lists(heads: Heads) -> None:
    step = written(heads, [6, 2], [250, 3], seed=5)
    (dense,) = _plain(heads)(*step.attend(step.past_key, step.past_value), output_shapes=[_shape(step)])
    for top in (64, 80):  # the last row of the first sequence ends group 63
        assert same_bits(attend(heads, step, lists(step, top, 0)), dense)


def test_lists_that_cannot_be() -> None:
    heads = HEADS[1]
    step = written(heads, [2], [20], seed=0)  # of 5 whole groups each
    good = lists(step, 3, seed=0)
    for column, value, text in ((2, 5, r"\[1\]\[2\] is 5"), (0, -1, r"\[1\]\[0\] is -1"), (2, -1, r"\[1\]\[2\] is -1")):
        bad = good.copy()
        bad[1, column] = value
        with pytest.raises(Exception, match=rf"PagedAttention: input groups{text}, not one of 5 groups in ascending"):
            attend(heads, step, bad)
    bad = good.copy()
    bad[0] = 1, 3, 3
    with pytest.raises(Exception, match=r"input groups\[0\]\[2\] is 3, not one of 5 groups in ascending order"):
        attend(heads, step, bad)
    with pytest.raises(Exception, match=r"PagedAttention: input groups has no columns"):
        attend(heads, step, good[:, :0])
    with pytest.raises(Exception, match=r"PagedAttention: input groups has shape \[1, 3\], expected \[2, \*\]"):
        attend(heads, step, good[:1])


def _plain(heads: Heads) -> Operator:
    example: Any = make_step(heads, [1], [0])
    inputs = example.attend(example.past_key, example.past_value)
    return Operator("PagedAttention", inputs, [np.float32], heads.attributes)


def _shape(step: Step) -> tuple[int, int]:
    rows, columns = step.q_gate.shape
    return rows, columns // 2
