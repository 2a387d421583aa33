"""NgramRows and NgramMix against their NumPy references, and the bits of a text however it is cut and verified."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.gdn_cases import STEPS, make_step
from support.operators.row_bits import portable_kernels
from support.operators.run import LIBRARY, THREADS, Operator, same_bits
from trigraph.custom_ops.gated_delta_net.reference import Step
from trigraph.custom_ops.ngrams.reference import Weights, ngram_mix, ngram_rows

Array = NDArray[Any]
K = 8
EPS = 1e-6
NAMES = ("x", "key", "query", "value")


def hash_inputs(rng: np.random.Generator, lengths: list[int], size: int, heads: int) -> list[Array]:
    """Token ids with some that end a text (7), and constants as large as those of published files."""
    tokens = rng.integers(0, 12, sum(lengths))
    previous = rng.integers(0, 12, (len(lengths), size - 1))
    moduli = rng.integers(1, 1 << 25, heads * (size - 1))
    offsets = np.cumsum(moduli) - moduli
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    return [tokens, previous, starts, rng.integers(1, 1 << 45, size), moduli, offsets]


@pytest.mark.parametrize(("size", "heads"), [(3, 8), (2, 1), (5, 3)])
@pytest.mark.parametrize("lengths", [[1], [2, 1, 40], [9, 8, 7]])
def test_rows(isa: str, size: int, heads: int, lengths: list[int]) -> None:
    inputs = hash_inputs(np.random.default_rng(size), lengths, size, heads)
    expected = ngram_rows(*inputs, eos=7)
    kernel = Operator("NgramRows", inputs, [np.int64], {"eos": 7})
    np.testing.assert_array_equal(kernel(*inputs, output_shapes=[expected.shape])[0], expected)
    assert (expected >= 0).all() and (expected < inputs[4].sum()).all()


def test_published_constants() -> None:
    """The largest products are just below 2^63."""
    inputs = hash_inputs(np.random.default_rng(0), [6], 3, 8)
    inputs[0][:] = [248319, 248044, 5, 248319, 248318, 248317]
    inputs[3][:] = [23703573157769, 20109073645365, 8052911324071]
    found = Operator("NgramRows", inputs, [np.int64], {"eos": 248044})(*inputs)[0]
    np.testing.assert_array_equal(found, ngram_rows(*inputs, eos=248044))


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, np.array([3, -1]), "input_ids holds -1, expected token ids"),
        (1, np.array([[3, -5]]), "previous_ids holds -5, expected token ids"),
        (2, np.array([0, 3], np.int32), "cu_seqlens ends at 3, but there are 2 rows"),
        (4, np.array([1, 0]), r"moduli\[1\], offsets\[1\] are 0, 0, expected at least 1 and 0"),
        (5, np.array([-1, 0]), r"moduli\[0\], offsets\[0\] are 5, -1"),
        (5, np.array([0, 2**63 - 6]), r"moduli\[1\], offsets\[1\] are 6, 9223372036854775802"),
    ],
)
def test_refused_rows(index: int, value: Array, message: str) -> None:
    inputs = [np.array([3, 4]), np.array([[1, 2]]), np.array([0, 2], np.int32), np.array([3, 5, 7])]
    inputs += [np.array([5, 6]), np.array([0, 0])]
    inputs[index] = value
    with pytest.raises(Exception, match=rf"trigraph\.NgramRows: .*{message}"):
        Operator("NgramRows", inputs, [np.int64], {"eos": 0})(*inputs)


@dataclass(frozen=True)
class Shape:
    streams: int
    hidden: int
    dilation: int = 3

    @property
    def width(self) -> int:
        return self.streams * self.hidden

    @property
    def history(self) -> int:
        return 3 * self.dilation


SHAPES = [Shape(4, 64), Shape(4, 2560), Shape(3, 33, dilation=1), Shape(1, 1, dilation=2), Shape(2, 17)]


@dataclass(frozen=True)
class Rows:
    x: Array
    key: Array
    query: Array
    value: Array

    def __getitem__(self, rows: Any) -> "Rows":
        return Rows(self.x[rows], self.key[rows], self.query[rows], self.value[rows])


def draw_rows(rng: np.random.Generator, shape: Shape, count: int) -> Rows:
    widths = (shape.width, shape.width, shape.width, shape.hidden)
    return Rows(*(rng.standard_normal((count, width), dtype=np.float32) for width in widths))


class Kernel:
    """The operator for one shape and form, and its reference."""

    def __init__(self, shape: Shape, commit: bool, threads: int = 1, aliased: bool = True, library: str = LIBRARY):
        rng = np.random.default_rng(shape.hidden)
        norm, taps = rng.uniform(0.5, 1.5, shape.width), rng.standard_normal((shape.width, 4)) / 2
        self.shape, self.weights = shape, Weights(norm.astype(np.float32), taps.astype(np.float32))
        self.attributes = {"streams": shape.streams, "dilation": shape.dilation, "commit": int(commit), "eps": EPS}
        example = self.inputs(draw_rows(rng, shape, 1), self.window(1), make_step([1], [0], [0], [0]))
        alias = {1: 6} if aliased else {}
        types = [np.float32] * 2
        self.operator = Operator(
            "NgramMix", example, types, self.attributes, threads=threads, alias=alias, library=library
        )

    def window(self, slots: int, seed: int = 0) -> Array:
        size = (slots, self.shape.history + K, self.shape.width)
        return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)

    def inputs(self, rows: Rows, window: Array, step: Step) -> list[Array]:
        w = self.weights
        indices = [step.cu_seqlens, step.past_lens, step.accepted, step.slots_in, step.slots_out]
        return [rows.x, rows.key, rows.query, rows.value, w.conv_norm, w.conv, window, *indices]

    def __call__(self, rows: Rows, window: Array, step: Step) -> tuple[Array, Array]:
        y, present = self.operator(*self.inputs(rows, window, step), output_shapes=[rows.x.shape, window.shape])
        return y, present

    def reference(self, rows: Rows, window: Array, step: Step) -> tuple[Array, Array]:
        settings: dict[str, Any] = {**self.attributes, "commit": bool(self.attributes["commit"])}
        return ngram_mix(rows.x, rows.key, rows.query, rows.value, self.weights, window, step, **settings)


@pytest.mark.parametrize("commit", [False, True], ids=["verify", "prefill"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mix(isa: str, shape: Shape, commit: bool) -> None:
    rng = np.random.default_rng(1)
    kernels = [Kernel(shape, commit, threads, aliased) for threads in THREADS for aliased in (False, True)]
    with portable_kernels():
        kernels.append(Kernel(shape, commit, library="cpu"))
    for lengths, *rest in STEPS:
        step, rows, window = make_step(lengths, *rest), draw_rows(rng, shape, sum(lengths)), kernels[0].window(5)
        wanted = kernels[0].reference(rows, window, step)
        found = kernels[0](rows, window, step)
        for actual, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))
        for other in kernels[1:]:
            assert all(same_bits(a, b) for a, b in zip(other(rows, window, step), found, strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_text_has_the_same_bits_however_it_is_run(isa: str, shape: Shape) -> None:
    """Prefill at once, in pieces, and verifies with rejected tokens, beside another sequence."""
    rng, count = np.random.default_rng(3), 40
    text, prefill, verify = draw_rows(rng, shape, count), Kernel(shape, commit=True), Kernel(shape, commit=False)
    nothing = np.full_like(prefill.window(3), np.nan)  # what a text begins in is not read
    whole, after = prefill(text, nothing, make_step([count], [0], [0], [1]))
    assert np.isfinite(whole).all()

    window, at, found = nothing, 0, []
    for size in (1, 2, 17, 20):
        y, window = prefill(text[at : at + size], window, make_step([size], [at], [0], [1]))
        found.append(y)
        at += size
    assert same_bits(np.concatenate(found), whole)
    assert same_bits(window[1, : shape.history], after[1, : shape.history])

    window, at, kept, found = nothing, 0, 0, []
    while at < count:
        good = int(rng.integers(1, min(K, count - at) + 1))
        wrong = draw_rows(rng, shape, int(rng.integers(0, K + 1 - good)))
        other = draw_rows(rng, shape, 2)
        parts = [text[at : at + good], wrong, other]
        rows = Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in NAMES))
        own = good + len(wrong.x)
        step = make_step([own, 2], [at, 0], [kept, 0], [1, 0])
        y, window = verify(rows, window, step)
        found.append(y[:good])
        at, kept = at + good, good
    assert same_bits(np.concatenate(found), whole)


def test_refused_steps() -> None:
    shape = SHAPES[0]
    rng, kernel = np.random.default_rng(4), Kernel(shape, commit=False)
    rows, window, step = draw_rows(rng, shape, 4), kernel.window(3), make_step([3, 1], [5, 9], [2, 0], [0, 1])
    kernel(rows, window, step)
    for change, message in (
        ({"accepted": np.array([9, 0], np.int32)}, r"accepted\[0\] is 9, expected 0 to 8"),
        ({"slots_in": np.array([0, 3], np.int32)}, r"slots_in\[1\] is 3, but there are 3 slots"),
        ({"slots_out": np.array([1, 1], np.int32)}, r"slots_out\[1\] is 1, which sequence 0 writes too"),
        ({"cu_seqlens": np.array([0, 3, 5], np.int32)}, "cu_seqlens ends at 5, but the step has 4 tokens"),
    ):
        with pytest.raises(Exception, match=rf"trigraph\.NgramMix: .*{message}"):
            kernel(rows, window, replace(step, **change))
    with pytest.raises(Exception, match="past_window has 9 rows a slot, expected more than 9"):
        kernel(rows, window[:, :9].copy(), step)
