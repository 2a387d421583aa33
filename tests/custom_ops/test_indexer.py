"""PagedIndexWrite and PagedSelect against their NumPy references, and the bits of a text however it is cut."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.row_bits import portable_kernels
from support.operators.run import LIBRARY, THREADS, Operator, same_bits
from trigraph.custom_ops.indexer.reference import paged_index_write, paged_select

Array = NDArray[Any]
ROTARY: dict[str, Any] = {"rope_dims": 16, "rope_theta": 1e4, "eps": 1e-6}
GROUP, PAGE, HEADS, WIDTH = 4, 8, 3, 32
TABLE = np.array([[5, 2, 9, 0, 7, 11], [1, 8, 3, 4, 6, 10]], np.int32)


def starts(*lengths: int) -> Array:
    return np.cumsum([0, *lengths]).astype(np.int32)


def empty(dtype: Any) -> Array:
    return np.full((12, PAGE, WIDTH), np.nan, dtype)


class Write:
    def __init__(self, dtype: Any, threads: int = 1, aliased: bool = True, library: str = LIBRARY) -> None:
        self.norm = np.random.default_rng(9).uniform(0.5, 1.5, WIDTH).astype(np.float32)
        inputs = self.inputs(np.zeros((1, WIDTH), np.float32), empty(dtype), starts(1), np.zeros(1, np.int32))
        self.attributes = {**ROTARY, "group": GROUP}
        alias = {0: 2} if aliased else {}
        self.operator = Operator(
            "PagedIndexWrite", inputs, [dtype], self.attributes, threads=threads, alias=alias, library=library
        )

    def inputs(self, k: Array, index: Array, cu: Array, past: Array) -> list[Array]:
        return [k, self.norm, index, cu, past, TABLE[: len(past)]]

    def __call__(self, k: Array, index: Array, cu: Array, past: Array) -> Array:
        return self.operator(*self.inputs(k, index, cu, past), output_shapes=[index.shape])[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_writes(isa: str, dtype: Any) -> None:
    """Two sequences at once, in pieces that cut groups: the bits of one piece, and of the reference nearly."""
    rng, write = np.random.default_rng(0), Write(dtype)
    texts = rng.standard_normal((2, 41, WIDTH), dtype=np.float32)
    whole = write(texts.reshape(-1, WIDTH), empty(dtype), starts(41, 41), np.zeros(2, np.int32))
    expected = paged_index_write(
        texts.reshape(-1, WIDTH), write.norm, empty(dtype), starts(41, 41), np.zeros(2, np.int32), TABLE,
        **write.attributes,
    )  # fmt: skip
    tolerance = 2e-6 if dtype == np.float32 else 2e-3
    np.testing.assert_allclose(whole.astype(float), expected.astype(float), rtol=0, atol=tolerance)
    for threads in THREADS:
        for aliased in (True, False):
            other, index, at = Write(dtype, threads, aliased), empty(dtype), 0
            for size in (1, 2, 3, 1, 9, 25):
                rows = np.concatenate([text[at : at + size] for text in texts])
                index = other(rows, index, starts(size, size), np.full(2, at, np.int32))
                at += size
            assert same_bits(index, whole)
    with portable_kernels():
        assert same_bits(
            Write(dtype, library="cpu")(texts.reshape(-1, WIDTH), empty(dtype), starts(41, 41), np.zeros(2, np.int32)),
            whole,
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("top", [1, 3, 10, 20])
def test_selections(isa: str, dtype: Any, top: int) -> None:
    rng = np.random.default_rng(1)
    index = rng.standard_normal((12, PAGE, WIDTH)).astype(dtype)
    index[TABLE[0, 1], 3] = index[TABLE[0, 0], 7] = index[TABLE[0, 0], 3] = 0  # three groups of score 0
    norm, q = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32), rng.standard_normal((9, HEADS * WIDTH), dtype=np.float32)
    cu, past = starts(6, 3), np.array([41, 2], np.int32)
    attributes = {**ROTARY, "group": GROUP, "top": top}
    inputs = [q, norm, index, cu, past, TABLE]
    expected = paged_select(*inputs, **attributes)
    for threads in THREADS:
        kernel = Operator("PagedSelect", inputs, [np.int32], attributes, threads=threads)
        np.testing.assert_array_equal(kernel(*inputs, output_shapes=[expected.shape])[0], expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", ["spread", "ties", "zeros", "nan"])
def test_choices_among_many(isa: str, dtype: Any, kind: str) -> None:
    """The portable kernel's, of scores that lie far apart, are equal, or are no numbers: three sequences at once."""
    rng, pages, top = np.random.default_rng(3), 400, 512
    index = rng.standard_normal((pages, 16, WIDTH)).astype(dtype)
    if kind == "spread":
        index *= np.exp2(rng.integers(-12, 12, (pages, 16, 1))).astype(dtype)
    elif kind == "ties":
        index[:] = index[rng.integers(0, 40, pages)]
    elif kind == "zeros":
        index[rng.random((pages, 16)) < 0.9] = 0
    else:
        index[rng.random((pages, 16)) < 0.9] = np.nan
        index[rng.random((pages, 16)) < 0.01] = np.inf
    norm, q = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32), rng.standard_normal((6, HEADS * WIDTH), dtype=np.float32)
    table = rng.permutation(pages).astype(np.int32).reshape(1, -1).repeat(3, 0)
    inputs = [q, norm, index, starts(3, 1, 2), np.array([6396, 2051, 2047], np.int32), table]
    attributes = {**ROTARY, "group": GROUP, "top": top}
    with portable_kernels():
        portable = Operator("PagedSelect", inputs, [np.int32], attributes, library="cpu")
        expected = portable(*inputs, output_shapes=[(6, top)])[0]
    assert (np.diff(expected, axis=1) > 0).all() and len(np.unique(expected)) > top
    for _ in range(2):
        found = Operator("PagedSelect", inputs, [np.int32], attributes)(*inputs, output_shapes=[(6, top)])[0]
        np.testing.assert_array_equal(found, expected)


def test_errors() -> None:
    q, norm, index = np.zeros((2, 64), np.float32), np.ones(WIDTH, np.float32), np.zeros((12, PAGE, WIDTH), np.float32)
    inputs = [q, norm, index, starts(2), np.zeros(1, np.int32), TABLE[:1]]
    for changes, attributes, message in (
        ({}, {"top": 0}, "attribute top is 0, expected at least 1"),
        ({}, {"group": 3}, "attribute group is 3, expected a divisor of the 8 positions of a page"),
        ({0: np.zeros((2, 65), np.float32)}, {}, "input q has 65 columns, expected a multiple of 32"),
        ({3: starts(1)}, {}, "cu_seqlens ends at 1, but there are 2 rows"),
        (
            {4: np.full(1, 10, np.int32), 5: np.array([[12, 3]], np.int32)},
            {},
            r"page_table\[0\]\[0\] is page 12, outside \[0, 12\)",
        ),
    ):
        given = [changes.get(i, array) for i, array in enumerate(inputs)]
        with pytest.raises(Exception, match=rf"trigraph\.PagedSelect: .*{message}"):
            Operator("PagedSelect", given, [np.int32], {**ROTARY, "group": GROUP, "top": 2} | attributes)(*given)
    write = Write(np.float32)
    with pytest.raises(Exception, match=r"trigraph\.PagedIndexWrite: .*k has shape \[2, 64\]"):
        write.operator(q, norm, index, *inputs[3:], output_shapes=[index.shape])
    table = np.array([[3, -1]], np.int32)
    with pytest.raises(
        Exception, match=r"trigraph\.PagedIndexWrite: .*page_table\[0\]\[1\] is page -1, outside \[0, 12\)"
    ):
        write.operator(q[:, :32], norm, index, starts(2), np.full(1, 9, np.int32), table, output_shapes=[index.shape])


def test_attention_checks_its_groups() -> None:
    """Lists of rows that see all are not looked at; others must name whole groups in ascending order."""
    cache = np.zeros((12, PAGE, 1, WIDTH), np.float32)
    q_gate, norm = np.zeros((1, 2 * WIDTH), np.float32), np.ones(WIDTH, np.float32)

    def attend(past: int, *groups: int) -> None:
        inputs = [q_gate, norm, cache, cache, starts(1), np.array([past], np.int32), TABLE[:1], None]
        inputs.append(np.array([groups], np.int32))
        Operator("PagedAttention", inputs, [np.float32], {**ROTARY, "group": GROUP})(*inputs)

    attend(10, 7, -3)
    attend(11, 0, 2)
    for groups, text in (((2, 1), r"\[0\]\[1\] is 1"), ((0, 3), r"\[0\]\[1\] is 3"), ((-1, 0), r"\[0\]\[0\] is -1")):
        with pytest.raises(Exception, match=rf"groups{text}, not one of 3 groups in ascending order"):
            attend(11, *groups)
