"""PagedKVWrite and PagedAttention refuse bad values, shapes and attributes, and name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.attention_step import Attention, Heads, make_step
from support.operators.run import Operator


def changed(array: NDArray[Any], index: Any, value: Any) -> NDArray[Any]:
    array = array.copy()
    array[index] = value
    return array


ERRORS: dict[str, tuple[str, Callable[[NDArray[np.int32]], NDArray[np.int32]], str]] = {
    "page id too high": ("page_table", lambda x: changed(x, (1, 0), 99), r"page_table\[1\]\[0\] is page 99, outside"),
    "negative page id": ("page_table", lambda x: changed(x, (0, 1), -1), r"page_table\[0\]\[1\] is page -1"),
    "too few pages": ("page_table", lambda x: x[:, :1], "1 columns of 16 positions, too few for position 21"),
    "pages of another batch": ("page_table", lambda x: x[:1], r"page_table has shape \[1, 3\], expected \[2, \*\]"),
    "negative past": ("past_lens", lambda x: changed(x, 1, -3), r"past_lens\[1\] is -3"),
    "past of another batch": ("past_lens", lambda x: x[:1], r"past_lens has shape \[1\], expected \[2\]"),
    "past at the end of int32": ("past_lens", lambda x: changed(x, 0, 2**31 - 1), "too few for position 2147483648"),
    "first start": ("cu_seqlens", lambda x: changed(x, 0, 1), "cu_seqlens starts at 1"),
    "empty sequence": ("cu_seqlens", lambda x: changed(x, 1, 0), "cu_seqlens goes from 0 to 0: sequence 0 has no rows"),
    "falling starts": ("cu_seqlens", lambda x: changed(x, 1, 9), "cu_seqlens goes from 9 to 5: sequence 1 has no rows"),
    "too many rows": ("cu_seqlens", lambda x: changed(x, 2, 6), "cu_seqlens ends at 6, but there are 5 rows"),
    "no starts": ("cu_seqlens", lambda x: x[:0], "cu_seqlens is empty"),
}  # fmt: skip


@pytest.mark.parametrize("operator", ["write", "attend"])
@pytest.mark.parametrize("what", ERRORS)
def test_bad_sequences_are_refused(what: str, operator: str) -> None:
    name, change, message = ERRORS[what]
    heads = Heads()
    step = make_step(heads, [2, 3], [20, 1])
    attention = Attention(heads)
    changes: dict[str, Any] = {name: change(getattr(step, name))}
    bad = replace(step, **changes)
    with pytest.raises(Exception, match=message):
        if operator == "write":
            attention.write(bad)
        else:
            attention.attend(bad, step.past_key, step.past_value)


def test_bad_shapes_are_refused() -> None:
    heads = Heads()
    step = make_step(heads, [2, 3], [20, 1])
    key, value = step.past_key, step.past_value
    attention = Attention(heads)
    for name, message in (("k", r"input k has shape \[5, 112\]"), ("v", r"input v has shape \[5, 112\]")):
        with pytest.raises(Exception, match=message):
            attention.write(replace(step, **{name: getattr(step, name)[:, 16:]}))
    with pytest.raises(Exception, match=r"input v has shape \[4, 128\], expected \[5, 128\]"):
        attention.write(replace(step, v=step.v[1:]))
    with pytest.raises(Exception, match=r"input k_norm has shape \[63\]"):
        attention.write(replace(step, k_norm=step.k_norm[1:]))
    with pytest.raises(Exception, match=r"input past_value has shape"):
        attention.write(replace(step, past_value=value[1:]))
    with pytest.raises(Exception, match=r"input q_norm has shape \[63\]"):
        attention.attend(replace(step, q_norm=step.q_norm[1:]), key, value)
    for columns in (0, 64, 384):  # 384: three query heads do not divide among two kv heads
        with pytest.raises(Exception, match=f"input q_gate has {columns} columns, not a multiple of 2 x 2 kv heads"):
            attention.attend(replace(step, q_gate=step.q_gate[:, :columns]), key, value)
    with pytest.raises(Exception, match="input key has head dimension 24, not a multiple of 16"):
        attention.attend(step, key[..., :24], value[..., :24])
    inputs = step.attend(key, value)
    wide = Operator("PagedAttention", inputs, [np.float32], {**heads.attributes, "rope_dims": 66})
    with pytest.raises(Exception, match="rope_dims is 66, more than the head dimension 64"):
        wide(*inputs)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ({"rope_dims": 7}, "rope_dims is 7, not an even number"),
        ({"rope_dims": -2}, "rope_dims is -2, not an even number"),
        ({"rope_theta": 0.0}, "rope_theta is 0, not above 0"),
        ({"eps": -1.0}, "eps is -1, below 0"),
    ],
)
def test_bad_attributes_are_refused(attribute: dict[str, Any], message: str) -> None:
    step = make_step(Heads(), [1], [0])
    inputs = step.attend(step.past_key, step.past_value)
    with pytest.raises(Exception, match=message):
        Operator("PagedAttention", inputs, [np.float32], {**Heads().attributes, **attribute})
