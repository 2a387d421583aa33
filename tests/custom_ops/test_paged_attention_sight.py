"""PagedAttention without gates, of rows that see all of their step, and with windows: the reference, and bits.

Cache entries behind a window are numbers, as those of texts are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.attention_step import Attention, Heads, Step, assert_attended, make_step
from support.operators.run import LIBRARY, THREADS, Operator, same_bits
from trigraph.custom_ops.paged_attention.reference import paged_attention

SIGHTS: list[dict[str, int]] = [
    {"gate": 0},
    {"causal": 0},
    {"window": 1},
    {"window": 70},
    {"gate": 0, "causal": 0, "window": 300},
    {"gate": 0, "causal": 1, "window": 300},
    {"gate": 0, "causal": 0, "window": 5},
]
LENGTHS, PASTS = [8, 3, 8, 1, 8], [0, 253, 299, 700, 1021]


class Sight:
    """The operator with attributes of what rows see, on steps whose heads have a gate until it is cut off."""

    def __init__(self, heads: Heads, sight: dict[str, int], threads: int = 1, library: str = LIBRARY) -> None:
        self.gated, self.heads, self.sight = sight.get("gate", 1), heads, sight
        step = make_step(heads, [1], [0])
        inputs = self._inputs(step, step.past_key, step.past_value)
        attributes = heads.attributes | sight
        self._run = Operator("PagedAttention", inputs, [np.float32], attributes, threads=threads, library=library)

    def _inputs(self, step: Step, *cache: NDArray[Any]) -> tuple[Any, ...]:
        q_gate, *others = step.attend(*cache)
        heads = q_gate.reshape(len(q_gate), -1, 2, self.heads.width)
        return np.ascontiguousarray(heads[:, :, : 1 + self.gated]).reshape(len(q_gate), -1), *others

    def __call__(self, step: Step, *cache: NDArray[Any]) -> NDArray[np.float32]:
        columns = step.q_gate.shape[1] // 2
        return self._run(*self._inputs(step, *cache), output_shapes=[(len(step.q_gate), columns)])[0]

    def reference(self, step: Step, *cache: NDArray[Any]) -> NDArray[Any]:
        attributes: dict[str, Any] = self.heads.rotary | self.sight
        return paged_attention(*self._inputs(step, *cache), **attributes)


def written(heads: Heads, seed: int = 0) -> tuple[Step, tuple[NDArray[Any], NDArray[Any]]]:
    """A step of several blocks, and the cache with their entries."""
    step = make_step(heads, LENGTHS, PASTS, seed)
    return step, Attention(heads).write(step)


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8], ids=["f16", "f32", "q8_0"])
@pytest.mark.parametrize(("width", "group"), [(64, 1), (128, 4), (96, 3)])
def test_matches_the_reference(isa: str, sight: dict[str, int], dtype: Any, width: int, group: int) -> None:
    heads = Heads(width=width, group=group, dtype=dtype)
    step, cache = written(heads)
    attention = Sight(heads, sight)
    assert_attended(heads, step, attention(step, *cache), attention.reference(step, *cache), 4e-6)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("sight", SIGHTS, ids=str)
def test_companions_do_not_matter(isa: str, sight: dict[str, int], threads: int) -> None:
    heads = Heads(width=64, group=3)
    step, cache = written(heads)
    together, attention = Sight(heads, sight, threads)(step, *cache), Sight(heads, sight)
    for s, length in enumerate(LENGTHS):
        rows = slice(step.cu_seqlens[s], step.cu_seqlens[s + 1])
        assert same_bits(attention(step.part(s, 0, length), *cache), together[rows]), s


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8], ids=["f16", "f32", "q8_0"])
def test_without_a_gate_rows_are_those_of_open_ones(isa: str, dtype: Any) -> None:
    """The sigmoid of 40 is 1."""
    heads = Heads(width=64, group=2, dtype=dtype)
    step, cache = written(heads)
    step.q_gate.reshape(len(step.q_gate), -1, 2, heads.width)[:, :, 1] = 40
    assert same_bits(Sight(heads, {"gate": 0})(step, *cache), Attention(heads).attend(step, *cache))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8], ids=["f16", "f32", "q8_0"])
def test_rows_that_see_all_are_last_rows(isa: str, dtype: Any) -> None:
    """Each as a sequence of its own at the place of the last one, turned by its own position."""
    heads = Heads(width=64, group=2, dtype=dtype, sections=(8, 0, 0))
    step, cache = written(heads)
    owner = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    single = replace(
        step,
        cu_seqlens=np.arange(len(owner) + 1, dtype=np.int32),
        past_lens=(step.past_lens + np.array(LENGTHS, np.int32) - 1)[owner],
        page_table=step.page_table[owner],
    )
    assert same_bits(Sight(heads, {"causal": 0})(step, *cache), Attention(heads).attend(single, *cache))


def test_a_window_that_all_fit_into_changes_nothing(isa: str) -> None:
    heads = Heads(width=64, group=4)
    step, cache = written(heads)
    assert same_bits(Sight(heads, {"window": 1029})(step, *cache), Sight(heads, {})(step, *cache))
    assert same_bits(
        Sight(heads, {"window": 1029, "causal": 0})(step, *cache), Sight(heads, {"causal": 0})(step, *cache)
    )


def test_a_window_in_a_long_step(isa: str) -> None:
    """Splits of which rows see nothing."""
    heads = Heads(width=64, group=2)
    step = make_step(heads, [700], [100])
    cache, attention = Attention(heads).write(step), Sight(heads, {"window": 40})
    assert_attended(heads, step, attention(step, *cache), attention.reference(step, *cache), 4e-6)


@pytest.mark.skipif(LIBRARY == "cpu", reason="compares another library with the CPU's")
@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8], ids=["f16", "f32", "q8_0"])
def test_the_bits_of_the_cpu(sight: dict[str, int], dtype: Any) -> None:
    for heads in (Heads(width=64, group=2, dtype=dtype), Heads(width=128, group=4, dtype=dtype)):
        step, cache = written(heads)
        assert same_bits(Sight(heads, sight)(step, *cache), Sight(heads, sight, library="cpu")(step, *cache))


@pytest.mark.parametrize("window", [-1, 2**31])
def test_errors(window: int) -> None:
    with pytest.raises(Exception, match=f"attribute window is {window}, outside 0 to 1073741824"):
        Sight(Heads(), {"window": window})
