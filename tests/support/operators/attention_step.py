"""Random steps for PagedKVWrite and PagedAttention, and both operators behind one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.operators.run import LIBRARY, Operator
from trigraph.custom_ops.paged_attention.reference import MOST_KEY, MOST_VALUE, encode, turned_queries

ROPE = {"rope_theta": 1e7, "eps": 1e-6}
_NEAR = 1e-4  # of a code, from the middle of two
UNUSED_PAGE = 1 << 30  # stands where no position lies: reading it would be far outside the cache


@dataclass
class Heads:
    width: int = 64
    kv: int = 2
    group: int = 2  # query heads of a kv head
    page: int = 16
    dtype: Any = np.float16
    sections: tuple[int, int, int] | None = None  # of positions on three axes

    @property
    def rotary(self) -> dict[str, Any]:
        """Attributes that the reference takes too."""
        sections = {} if self.sections is None else {"rope_sections": self.sections}
        return {"rope_dims": self.width // 4, **ROPE, **sections}

    @property
    def attributes(self) -> dict[str, Any]:
        return self.rotary | ({"type": "Q8_0"} if self.dtype == np.uint8 else {})

    def empty(self, pages: int) -> NDArray[Any]:
        """Pages that hold NaN alone."""
        shape = (pages, self.page, self.kv)
        if self.dtype != np.uint8:
            return np.full((*shape, self.width), np.nan, self.dtype)
        blocks = np.zeros((*shape, self.width // 32, 34), np.uint8)
        blocks[..., 1], blocks[..., 2:] = 0x7E, 1
        return blocks.reshape(*shape, -1)


@dataclass
class Step:
    """The inputs of a step, in the operators' order."""

    q_gate: NDArray[np.float32]
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    q_norm: NDArray[np.float32]
    k_norm: NDArray[np.float32]
    past_key: NDArray[Any]
    past_value: NDArray[Any]
    cu_seqlens: NDArray[np.int32]
    past_lens: NDArray[np.int32]
    page_table: NDArray[np.int32]
    positions: NDArray[np.int32] | None = None

    @property
    def sequences(self) -> tuple[Any, ...]:
        axes = () if self.positions is None else (self.positions,)
        return self.cu_seqlens, self.past_lens, self.page_table, *axes

    @property
    def write(self) -> tuple[Any, ...]:
        return self.k, self.v, self.k_norm, self.past_key, self.past_value, *self.sequences

    def attend(self, key: NDArray[Any], value: NDArray[Any]) -> tuple[Any, ...]:
        return self.q_gate, self.q_norm, key, value, *self.sequences

    def part(self, sequence: int, first: int, count: int) -> Step:
        """Rows [first, first + count) of one sequence as a step of their own."""
        rows = slice(self.cu_seqlens[sequence] + first, self.cu_seqlens[sequence] + first + count)
        return replace(
            self,
            q_gate=self.q_gate[rows],
            k=self.k[rows],
            v=self.v[rows],
            cu_seqlens=np.array([0, count], np.int32),
            past_lens=self.past_lens[sequence : sequence + 1] + np.int32(first),
            page_table=self.page_table[sequence : sequence + 1],
            positions=None if self.positions is None else self.positions[:, rows],
        )


def make_step(heads: Heads, lengths: Sequence[int], pasts: Sequence[int], seed: int = 0) -> Step:
    """Random inputs; all that no position of a sequence lies in is NaN, or a page id that does not exist."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32)

    needed = [-(-(past + n) // heads.page) for past, n in zip(pasts, lengths, strict=True)]
    ids = rng.permutation(sum(needed) + 2).astype(np.int32)
    table = np.full((len(needed), max(needed, default=0) + 1), UNUSED_PAGE, np.int32)
    key, value = heads.empty(len(ids)), heads.empty(len(ids))
    for s, (count, past) in enumerate(zip(needed, pasts, strict=True)):
        table[s, :count], ids = ids[:count], ids[count:]
        seen = np.arange(past)
        entries = table[s, seen // heads.page], seen % heads.page
        key[entries] = encode(normal(past, heads.kv, heads.width), MOST_KEY, heads.dtype)
        value[entries] = encode(normal(past, heads.kv, heads.width), MOST_VALUE, heads.dtype)
    rows = sum(lengths)
    return Step(
        q_gate=normal(rows, heads.kv * heads.group * 2 * heads.width),
        k=normal(rows, heads.kv * heads.width),
        v=normal(rows, heads.kv * heads.width),
        q_norm=normal(heads.width),
        k_norm=normal(heads.width),
        past_key=key,
        past_value=value,
        cu_seqlens=np.cumsum([0, *lengths], dtype=np.int32),
        past_lens=np.array(pasts, np.int32),
        page_table=table,
        positions=None if heads.sections is None else rng.integers(0, 5000, (3, rows), np.int32),
    )


class Attention:
    """Both operators; `__call__` writes a step's entries and attends."""

    def __init__(self, heads: Heads, threads: int = 1, same_buffer: bool = True, library: str = LIBRARY) -> None:
        example = make_step(heads, [1], [0])
        self.writer = Operator(
            "PagedKVWrite",
            example.write,
            [heads.dtype] * 2,
            heads.attributes,
            threads=threads,
            alias={0: 3, 1: 4} if same_buffer else None,
            library=library,
        )
        self.reader = Operator(
            "PagedAttention",
            example.attend(example.past_key, example.past_value),
            [np.float32],
            heads.attributes,
            threads=threads,
            library=library,
        )

    def write(self, step: Step) -> tuple[NDArray[Any], NDArray[Any]]:
        key, value = self.writer(*step.write, output_shapes=[step.past_key.shape] * 2)
        return key, value

    def attend(self, step: Step, key: NDArray[Any], value: NDArray[Any]) -> NDArray[np.float32]:
        rows, columns = step.q_gate.shape
        return self.reader(*step.attend(key, value), output_shapes=[(rows, columns // 2)])[0]

    def __call__(self, step: Step) -> NDArray[np.float32]:
        return self.attend(step, *self.write(step))


def assert_close(found: NDArray[Any], wanted: NDArray[Any], tolerance: float) -> None:
    difference = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    assert difference.max() <= tolerance, f"{difference.max()} at {np.unravel_index(difference.argmax(), found.shape)}"


def near_ties(heads: Heads, step: Step) -> NDArray[np.bool_]:
    """Queries of a cache of blocks, [R, H], some element of which is so near the middle of two codes that float32 may
    round it otherwise than float64."""
    sequences = step.cu_seqlens, step.past_lens, step.positions
    q = turned_queries(step.q_gate, step.q_norm, *sequences, rotated=True, rotary=heads.rotary)  # type: ignore[arg-type]
    blocks = q.reshape(*q.shape[:2], -1, 32)
    code = np.abs(blocks) * (127 / np.abs(blocks).max(-1, keepdims=True))
    near: NDArray[np.bool_] = (np.abs(code % 1 - 0.5) < _NEAR).any((-1, -2))
    return near


def assert_attended(heads: Heads, step: Step, found: NDArray[Any], wanted: NDArray[Any], tolerance: float) -> None:
    """Close, but for a code or two of queries near a tie, of which there are no more than chance makes."""
    if heads.dtype != np.uint8:
        return assert_close(found, wanted, tolerance)
    tied = near_ties(heads, step)
    expected = 2 * _NEAR * heads.width * tied.size
    assert tied.sum() <= expected + 6 * expected**0.5 + 4  # six deviations; of two queries, both may be
    by_head = [y.reshape(*tied.shape, -1) for y in (found, wanted)]
    assert_close(by_head[0][~tied], by_head[1][~tied], tolerance)
    assert_close(by_head[0], by_head[1], 5e-3)
    return None
