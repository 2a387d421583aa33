"""PagedKVWrite and PagedAttention against their NumPy reference and torch, and the promise that a row's bits depend on
its query, its position and the entries up to it, and on nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.attention_step import ROPE, Attention, Heads, assert_close, make_step
from support.operators.run import THREADS, same_bits
from trigraph.custom_ops.paged_attention.reference import paged_attention, paged_kv_write

LENGTHS, PASTS = [1, 3, 63, 65, 1, 2], [0, 1, 63, 64, 65, 1000]


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["f16", "f32"])
@pytest.mark.parametrize(("width", "group"), [(64, 1), (64, 8), (80, 3), (128, 2), (256, 6), (256, 8)])
def test_matches_the_reference(isa: str, width: int, group: int, dtype: Any) -> None:
    heads = Heads(width=width, group=group, kv=2, page=16, dtype=dtype)
    step = make_step(heads, LENGTHS, PASTS)
    attention = Attention(heads)
    key, value = attention.write(step)
    wanted_key, wanted_value = paged_kv_write(*step.write, **heads.rotary)
    written = np.isnan(step.past_key) & ~np.isnan(wanted_key)
    assert same_bits(key[~written], step.past_key[~written]) and same_bits(value, wanted_value)
    # Float32 and float64 may round to neighbours.
    ulp = np.finfo(dtype).eps * np.maximum(np.abs(wanted_key[written]), 1)
    assert_close(key[written] / ulp, wanted_key[written] / ulp, 1.0 if dtype == np.float16 else 16.0)
    wanted = paged_attention(*step.attend(key, value), **heads.rotary)
    assert_close(attention.attend(step, key, value), wanted, 4e-6)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("heads", [Heads(width=256, group=8), Heads(group=1, dtype=np.float32)], ids=["gqa8", "mha"])
def test_verify_rows_equal_single_rows(isa: str, heads: Heads, threads: int) -> None:
    attention = Attention(heads, threads)
    for past in (0, 62, 251, 1000):  # the softmax splits end at multiples of 256
        whole = make_step(heads, [8], [past], seed=past)
        cache = attention.write(whole)
        alone = [attention.attend(whole.part(0, i, 1), *cache) for i in range(8)]
        for k in range(1, 9):
            verify = whole.part(0, 0, k)
            assert same_bits(attention(verify), np.concatenate(alone[:k])), (past, k)


def test_rows_that_a_split_holds_nothing_for(isa: str) -> None:
    """All scores lie below 0, which a softmax over no entries must not be taken for."""
    heads = Heads(group=2)
    step = make_step(heads, [8], [251])  # the first five rows end with the first split
    width = heads.width
    step.q_gate.reshape(8, -1, 2 * width)[..., :width] = -1
    for array in (step.k, step.past_key, step.q_norm, step.k_norm):
        np.abs(array, out=array)
    attention = Attention(heads)
    cache = attention.write(step)
    together = attention.attend(step, *cache)
    for row in range(8):
        assert same_bits(attention.attend(step.part(0, row, 1), *cache)[0], together[row]), row


def test_large_scores(isa: str) -> None:
    heads = Heads(width=64, group=3, dtype=np.float32)
    step = make_step(heads, [3, 70], [600, 1])
    step.q_norm *= 100  # scores of thousands, far above where exp ends
    key, value = Attention(heads).write(step)
    wanted = paged_attention(*step.attend(key, value), **heads.rotary)
    assert_close(Attention(heads).attend(step, key, value), wanted, 2e-3)


def test_prefill_rows_equal_single_rows(isa: str) -> None:
    heads = Heads(width=64, group=6)
    attention = Attention(heads, threads=2)
    step = make_step(heads, [300], [5])
    key, value = attention.write(step)
    whole = attention.attend(step, key, value)
    for row in (0, 1, 9, 10, 63, 64, 250, 251, 299):
        assert same_bits(attention.attend(step.part(0, row, 1), key, value)[0], whole[row]), row
    first, second = step.part(0, 0, 123), step.part(0, 123, 177)
    chunk = attention.write(first)
    assert same_bits(attention.attend(first, *chunk), whole[:123])
    second = replace(second, past_key=chunk[0], past_value=chunk[1])
    assert same_bits(attention(second), whole[123:])


def test_companions_do_not_matter(isa: str) -> None:
    heads = Heads(width=128, group=4)
    attention = Attention(heads, threads=2)
    step = make_step(heads, [3, 1, 70, 8], [300, 0, 20, 1023])
    key, value = attention.write(step)
    together = attention.attend(step, key, value)
    for s in range(4):
        alone = step.part(s, 0, int(np.diff(step.cu_seqlens)[s]))
        wanted = together[step.cu_seqlens[s] : step.cu_seqlens[s + 1]]
        assert same_bits(attention(alone), wanted), s
    for threads in THREADS[:-1]:
        assert same_bits(Attention(heads, threads).attend(step, key, value), together)


def test_many_sequences_run_as_tiles_and_one_as_splits() -> None:
    heads = Heads(width=64, kv=1, group=2)
    attention = Attention(heads, threads=2)
    alone = make_step(heads, [2], [3000])
    cache = attention.write(alone)
    count = 20  # all of them read the same pages
    many = replace(
        alone,
        q_gate=np.tile(alone.q_gate, (count, 1)),
        cu_seqlens=np.arange(0, 2 * count + 1, 2, dtype=np.int32),
        past_lens=np.repeat(alone.past_lens, count),
        page_table=np.tile(alone.page_table, (count, 1)),
    )
    assert same_bits(attention.attend(many, *cache), np.tile(attention.attend(alone, *cache), (count, 1)))


def test_splits_of_a_long_text_are_merged_in_waves() -> None:
    heads = Heads(width=256, kv=1, group=8, page=64)
    attention = Attention(heads, threads=2)
    pages = 1100  # 70400 positions: more partial results of eight rows than are kept at a time
    step = make_step(heads, [8], [64 * 8 - 8])
    filled = make_step(heads, [1], [64 * 50])
    step.past_key, step.past_value = filled.past_key[:50].copy(), filled.past_value[:50].copy()
    step.past_key[np.isnan(step.past_key)] = 0
    step.past_value[np.isnan(step.past_value)] = 0
    step.page_table = (np.arange(pages, dtype=np.int32) % 50)[None]
    step.past_lens = np.array([64 * pages - 8], np.int32)
    together = attention.attend(step, step.past_key, step.past_value)
    for row in (0, 7):
        alone = attention.attend(step.part(0, row, 1), step.past_key, step.past_value)
        assert same_bits(alone[0], together[row])


def test_page_size_does_not_matter() -> None:
    rows = make_step(Heads(), [270], [0])
    wanted = Attention(Heads())(rows)
    for page in (1, 7, 64):
        heads = Heads(page=page)
        cache = make_step(heads, [270], [0])
        step = replace(rows, past_key=cache.past_key, past_value=cache.past_value, page_table=cache.page_table)
        assert same_bits(Attention(heads)(step), wanted), page


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["f16", "f32"])
def test_other_buffers_get_the_whole_cache(dtype: Any) -> None:
    heads = Heads(dtype=dtype)
    step = make_step(heads, [5, 1], [30, 2])
    same, other = Attention(heads), Attention(heads, threads=2, same_buffer=False)
    for a, b in zip(same.write(step), other.write(step), strict=True):
        assert same_bits(a, b)


def test_a_later_rows_nan_stays_in_that_row(isa: str) -> None:
    heads = Heads(group=4)
    attention = Attention(heads)
    step = make_step(heads, [4], [61])
    clean = attention(step)
    for name in ("k", "v"):
        rows = getattr(step, name).copy()
        rows[2] = np.nan
        dirty = attention(replace(step, **{name: rows}))
        assert same_bits(dirty[:2], clean[:2])
        assert np.isnan(dirty[2:]).all()


def test_no_rows() -> None:
    heads = Heads()
    attention = Attention(heads)
    step = make_step(heads, [], [])
    assert attention(step).shape == (0, heads.kv * heads.group * heads.width)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["f16", "f32"])
def test_matches_torch(dtype: Any) -> None:
    """torch's scaled_dot_product_attention and transformers' rotary embedding, on a text written in two steps."""
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    heads = Heads(width=128, kv=2, group=4, page=64, dtype=dtype)
    length, first = 300, 170
    whole = make_step(heads, [length], [0])
    attention = Attention(heads, threads=2)
    steps = [whole.part(0, 0, first), whole.part(0, first, length - first)]
    key, value = attention.write(steps[0])
    out = [attention.attend(steps[0], key, value)]
    steps[1] = replace(steps[1], past_key=key, past_value=value)
    out.append(attention(steps[1]))

    dims = heads.attributes["rope_dims"]
    angles = torch.outer(torch.arange(length).double(), 1e7 ** (-torch.arange(0, dims, 2).double() / dims))
    cosine, sine = (f(torch.cat([angles, angles], -1))[None] for f in (torch.cos, torch.sin))

    def split(x: NDArray[np.float32], count: int, width: int) -> Any:
        return torch.from_numpy(x).double().view(1, length, count, width).transpose(1, 2)

    def norm(x: Any, weight: NDArray[np.float32]) -> Any:
        return torch.nn.functional.rms_norm(x, (heads.width,), torch.from_numpy(weight).double(), ROPE["eps"])

    q, gate = split(whole.q_gate, heads.kv * heads.group, 2 * heads.width).chunk(2, -1)
    k, v = split(whole.k, heads.kv, heads.width), split(whole.v, heads.kv, heads.width)
    q, k = qwen.apply_rotary_pos_emb(norm(q, whole.q_norm), norm(k, whole.k_norm), cosine, sine)
    if dtype == np.float16:  # what the cache holds
        k, v = k.half().double(), v.half().double()
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    wanted = (attended * torch.sigmoid(gate)).transpose(1, 2).reshape(length, -1).numpy()
    # An entry of the float16 cache may be rounded to the neighbour of torch's.
    assert_close(np.concatenate(out), wanted, 4e-6 if dtype == np.float32 else 2e-3)
