"""Positions on three axes (multi-axis rotary embedding) in PagedKVWrite and PagedAttention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.attention_step import Attention, Heads, Step, assert_close, make_step
from support.operators.row_bits import portable_kernels
from support.operators.run import Operator, same_bits
from trigraph.custom_ops.paged_attention.reference import paged_attention, paged_kv_write

TYPES = [np.float16, np.float32, np.uint8]
SECTIONS = {64: (3, 3, 2), 256: (11, 11, 10), 96: (12, 0, 0), 32: (0, 1, 3)}
ALL_SECTIONS = pytest.mark.parametrize("width", SECTIONS)
ALL_TYPES = pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)


def heads_of(width: int, dtype: Any) -> Heads:
    return Heads(width=width, kv=2, group=3, page=7, dtype=dtype, sections=SECTIONS[width])


def places(step: Step) -> NDArray[np.int32]:
    """The position of each row in its sequence, on each axis."""
    rows = [past + np.arange(n) for past, n in zip(step.past_lens, np.diff(step.cu_seqlens), strict=True)]
    return np.tile(np.concatenate(rows).astype(np.int32), (3, 1))


@ALL_TYPES
@ALL_SECTIONS
def test_equal_axes_have_the_bits_of_text(isa: str, width: int, dtype: Any) -> None:
    heads = heads_of(width, dtype)
    step = make_step(heads, [5, 1, 70], [300, 0, 9])
    with_axes, plain = Attention(heads, threads=2), Attention(replace(heads, sections=None), threads=2)
    cache = with_axes.write(replace(step, positions=places(step)))
    text = replace(step, positions=None)
    for found, wanted in zip(cache, plain.write(text), strict=True):
        assert same_bits(found, wanted)
    found = with_axes.attend(replace(step, positions=places(step)), *cache)
    assert same_bits(found, plain.attend(text, *cache))
    assert not same_bits(found, with_axes.attend(step, *cache))


@ALL_TYPES
@ALL_SECTIONS
def test_against_the_reference_and_the_bits_of_single_rows(isa: str, width: int, dtype: Any) -> None:
    heads = heads_of(width, dtype)
    step = make_step(heads, [9, 33], [2, 270])
    attention = Attention(heads, threads=2)
    key, value = attention.write(step)
    if dtype != np.uint8:
        wanted = paged_kv_write(*step.write, **heads.rotary)
        assert_close(np.nan_to_num(key), np.nan_to_num(wanted[0]), 4e-6 if dtype == np.float32 else 4e-3)
    y = attention.attend(step, key, value)
    assert_close(y, paged_attention(*step.attend(key, value), **heads.rotary), 4e-6)
    with portable_kernels():
        portable = Attention(heads, library="cpu")
    assert all(same_bits(a, b) for a, b in zip(portable.write(step), (key, value), strict=True))
    assert same_bits(portable.attend(step, key, value), y)
    for sequence, row in ((0, 0), (0, 8), (1, 20)):
        part = step.part(sequence, row, 1)
        alone = attention.attend(part, *attention.write(replace(part, past_key=key, past_value=value)))
        assert same_bits(alone[0], y[step.cu_seqlens[sequence] + row])


@pytest.mark.slow
def test_transformers(isa: str) -> None:
    """Rotary embedding of Qwen3.5, whose frequencies and sections are those of transformers."""
    torch = pytest.importorskip("torch", reason="torch is not installed: no comparison with transformers")
    qwen = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    heads = replace(heads_of(256, np.float32), kv=1)
    step = make_step(heads, [40], [0])
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}
    config = qwen.Qwen3_5TextConfig(head_dim=256, rope_parameters=rope)
    cosine, sine = qwen.Qwen3_5TextRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(step.positions)[:, None])
    k = step.k.astype(np.float64)
    k = torch.from_numpy(k / np.sqrt((k * k).mean(-1, keepdims=True) + 1e-6) * step.k_norm)[None, None]
    (wanted, _) = qwen.apply_rotary_pos_emb(k, k, cosine, sine)
    key, _ = Attention(heads).write(step)
    pages = step.page_table[0, np.arange(40) // heads.page], np.arange(40) % heads.page
    assert_close(key[pages][:, 0], wanted[0, 0].numpy(), 2e-3)  # its angles are float32


def bad_sections(sections: Sequence[int], operator: str) -> None:
    heads = heads_of(64, np.float32)
    step = make_step(heads, [2], [0])
    inputs = step.write if operator == "PagedKVWrite" else step.attend(step.past_key, step.past_value)
    outputs = [np.float32] * (2 if operator == "PagedKVWrite" else 1)
    Operator(operator, inputs, outputs, heads.attributes | {"rope_sections": sections})


@pytest.mark.parametrize("operator", ["PagedKVWrite", "PagedAttention"])
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ([3, 5], "rope_sections has 2 numbers, expected 3"),
        ([3, 3, 2, 0], "rope_sections has 4 numbers, expected 3"),
        ([3, 3, 3], "rope_sections adds up to 9 pairs, but rope_dims has 8"),
        ([9, -1, 0], "rope_sections holds 9, outside 0 to 8 pairs"),
        ([8, -1, 1], "rope_sections holds -1, outside 0 to 8 pairs"),
        ([2**62, 2**62, 8], "rope_sections holds 4611686018427387904"),
    ],
)
def test_bad_sections_are_refused(sections: Sequence[int], message: str, operator: str) -> None:
    with pytest.raises(Exception, match=f"attribute {message}"):
        bad_sections(sections, operator)


def test_positions_and_sections_come_together() -> None:
    heads = heads_of(64, np.float32)
    step = make_step(heads, [2, 3], [0, 4])
    plain = Attention(replace(heads, sections=None))
    inputs: list[Any] = [*replace(step, positions=None).write, None]
    without = Operator("PagedKVWrite", inputs, [np.float32] * 2, heads.attributes)
    with pytest.raises(Exception, match="input positions is missing, which attribute rope_sections needs"):
        without(*inputs)
    assert plain.writer.session is not None
    sectionless = Operator("PagedKVWrite", step.write, [np.float32] * 2, replace(heads, sections=None).attributes)
    with pytest.raises(Exception, match="attribute rope_sections is missing, which input positions needs"):
        sectionless(*step.write)
    attention = Attention(heads)
    for positions in (step.positions[:2], step.positions[:, 1:], step.positions.T):  # type: ignore[index, union-attr]
        for run in (attention.write, lambda bad: attention.attend(bad, step.past_key, step.past_value)):
            with pytest.raises(Exception, match=r"input positions has shape .*, expected \[3, 5\]"):
                run(replace(step, positions=positions))
