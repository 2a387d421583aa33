"""LastRows and PreviousRows: which rows they pick, and the errors of wrong bounds."""

from typing import Any

import numpy as np
import pytest

from support.operators.fusion import model_of, node, session_of
from support.operators.run import LIBRARY, Operator
from trigraph.custom_ops.rows.reference import last_rows, previous_rows

LENGTHS = [[1], [5], [1, 1, 1], [3, 1, 7, 2]]


def step(lengths: list[int]) -> tuple[Any, Any, Any, Any]:
    """cu_seqlens and past_lens of a step, and two tensors with its rows."""
    rng = np.random.default_rng(sum(lengths))
    cu_seqlens = np.cumsum([0, *lengths]).astype(np.int32)
    past_lens = rng.integers(0, 1000, len(lengths)).astype(np.int32)
    x, also = (rng.standard_normal((sum(lengths), width), dtype=np.float32) for width in (7, 33))
    return cu_seqlens, past_lens, x, also


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("both", [True, False])
def test_last_rows(isa: str, lengths: list[int], both: bool) -> None:
    cu_seqlens, past_lens, x, also = step(lengths)
    inputs = [cu_seqlens, past_lens, x] + ([also] if both else [])
    count = len(lengths)
    shapes = [(count + 1,), (count,), (count, 7), (count, 33)][: 4 if both else 3]
    types = [np.int32, np.int32, np.float32, np.float32][: len(shapes)]
    found = Operator("LastRows", inputs, types, {})(*inputs, output_shapes=shapes)
    for one, other in zip(found, last_rows(*inputs), strict=False):
        np.testing.assert_array_equal(one, other)
    for s, length in enumerate(lengths):  # said in another way
        assert found[1][s] == past_lens[s] + length - 1
        assert (found[2][s] == x[sum(lengths[: s + 1]) - 1]).all()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_previous_rows(isa: str, lengths: list[int]) -> None:
    cu_seqlens, _, x, _ = step(lengths)
    before = np.random.default_rng(0).standard_normal((len(lengths), 7), dtype=np.float32)
    operator = Operator("PreviousRows", [x, before, cu_seqlens], [np.float32], {})
    (y,) = operator(x, before, cu_seqlens, output_shapes=[x.shape])
    np.testing.assert_array_equal(y, previous_rows(x, before, cu_seqlens))
    for s, start in enumerate(cu_seqlens[:-1]):
        sequence = np.concatenate([before[s : s + 1], x[start : cu_seqlens[s + 1] - 1]])
        np.testing.assert_array_equal(y[start : cu_seqlens[s + 1]], sequence)


@pytest.mark.parametrize(
    ("cu_seqlens", "past_lens", "message"),
    [
        ([0, 3, 5], [0, 0], "cu_seqlens ends at 5, but there are 4 rows"),
        ([0, 0, 4], [0, 0], "cu_seqlens goes from 0 to 0: sequence 0 has no rows"),
        ([0, 9, 4], [0, 0], "cu_seqlens goes from 9 to 4: sequence 1"),
        ([1, 2, 4], [0, 0], "cu_seqlens starts at 1"),
        ([], [0], "cu_seqlens is empty"),
        ([0, 2, 4], [0], r"past_lens has shape \[1\]"),
        ([0, 2, 4], [0, -1], r"past_lens\[1\] is -1"),
        ([0, 2, 4], [0, 2**31 - 1], r"past_lens\[1\] is 2147483647"),
    ],
)
def test_errors(cu_seqlens: list[int], past_lens: list[int], message: str) -> None:
    x = np.zeros((4, 3), np.float32)
    inputs = [np.array(cu_seqlens, np.int32), np.array(past_lens, np.int32), x]
    with pytest.raises(Exception, match=rf"trigraph\.LastRows: .*{message}"):
        Operator("LastRows", inputs, [np.int32, np.int32, np.float32], {})(*inputs)
    if "past_lens" not in message:
        inputs = [x, np.zeros((len(past_lens), 3), np.float32), inputs[0]]
        with pytest.raises(Exception, match=rf"trigraph\.PreviousRows: .*{message}"):
            Operator("PreviousRows", inputs, [np.float32], {})(*inputs)


def test_an_output_without_a_name() -> None:
    """ONNX Runtime refuses that where an output is no optional one."""
    inputs = dict(zip(("starts", "past", "x", "also"), step([2, 1]), strict=True))
    last = node("LastRows", "starts past x also", "one two three -")
    session = session_of(model_of([last], inputs, {"three": np.float32}), LIBRARY)
    with pytest.raises(Exception, match=r"trigraph\.LastRows: output 3 has no name"):
        session.run(["three"], inputs)
