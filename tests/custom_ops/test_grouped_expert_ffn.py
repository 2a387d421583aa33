"""GroupedExpertFFN against its NumPy reference, and the promise that a token's bits do not depend on its companions."""

from typing import Any

import numpy as np
import pytest

from support.operators.expert_layer import SHAPES, Layer, name_of, relative_error
from support.operators.row_bits import run_rows
from support.operators.run import THREADS, Operator, same_bits

# float32: another order of the sums. int8: a rounding error in h may also move its code to the next one.
TOLERANCE = {"float32": 3e-6, "int8": 2e-3}


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_matches_reference(isa: str, shape: dict[str, Any], activations: str) -> None:
    layer = Layer(**shape, activations=activations)
    for count in (1, 3, 63, 65):
        tokens = layer.tokens(count, seed=count)
        assert relative_error(layer.run(*tokens), layer.expected(*tokens)) < TOLERANCE[activations], count


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_bits_do_not_depend_on_companions_or_threads(isa: str, shape: dict[str, Any], activations: str) -> None:
    layer = Layer(**shape, activations=activations)
    x, ids, weights = layer.tokens(65)
    alone = np.concatenate([layer.run(x[t : t + 1], ids[t : t + 1], weights[t : t + 1]) for t in range(len(x))])
    assert same_bits(layer.run(x, ids, weights), alone)
    for threads in THREADS[:-1]:
        assert same_bits(Layer(**shape, activations=activations, threads=threads).run(x, ids, weights), alone)
    rng = np.random.default_rng(5)
    for count in range(1, 9):
        rows = rng.choice(len(x), count, replace=False)
        assert same_bits(layer.run(x[rows], ids[rows], weights[rows]), alone[rows]), rows


def test_long_step(isa: str) -> None:
    """More tokens than run at once, wider than the down products that wait for their sum (on a CPU)."""
    if isa == "cuda":
        layer, at_once, tokens = Layer(width=32, ffn=32, experts=2, k=1), 4096, 4100
    else:
        layer, at_once, tokens = Layer(width=1120, ffn=32, experts=8, k=4), 1024, 1100
    x, ids, weights = layer.tokens(tokens)
    y = layer.run(x, ids, weights)
    assert relative_error(y, layer.expected(x, ids, weights)) < TOLERANCE["float32"]
    for t in (0, 517, at_once - 1, at_once, tokens - 1):
        assert same_bits(y[t : t + 1], layer.run(x[t : t + 1], ids[t : t + 1], weights[t : t + 1])), t


def test_expert_chosen_twice_by_a_token(isa: str) -> None:
    layer = Layer(width=64, ffn=32, experts=3, k=3)
    x, ids, weights = layer.tokens(4)
    ids[:, 2] = ids[:, 0]
    ids[3] = 1
    assert relative_error(layer.run(x, ids, weights), layer.expected(x, ids, weights)) < TOLERANCE["float32"]


def test_sum_is_in_slot_order() -> None:
    """Large products that cancel: another order of the slots gives other bits."""
    layer = Layer(width=64, ffn=32, experts=8, k=4)
    x, ids, weights = layer.tokens(1)
    weights[:] = [[1e6, 1e-3, -1e6, 1e-3]]
    ids[:] = [[3, 1, 3, 0]]
    order = np.array([0, 2, 1, 3])
    assert not same_bits(layer.run(x, ids, weights), layer.run(x, ids[:, order], weights[:, order]))


def test_no_tokens() -> None:
    layer = Layer(width=64, ffn=32, experts=3, k=2)
    assert layer.run(*layer.tokens(0)).shape == (0, 64)


def change(layer: Layer, **inputs: Any) -> list[Any]:
    x, ids, weights = layer.tokens(2)
    names = dict(x=x, ids=ids, weights=weights, gate=layer.gate, down=layer.down, up=layer.up)
    return list((names | inputs).values())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            dict(ids=np.array([[0, 1], [2, 8]])),
            r"input ids holds expert 8 at token 1, slot 1: input gate has 3 experts",
        ),
        (dict(ids=np.array([[0, -1], [2, 0]])), r"input ids holds expert -1 at token 0, slot 1"),
        (dict(ids=np.zeros((2, 4), np.int64), weights=np.ones((2, 4), np.float32)), r"ids has 4 slots .* 3 experts"),
        (dict(ids=np.zeros((2, 0), np.int64), weights=np.ones((2, 0), np.float32)), r"ids has 0 slots"),
        (dict(ids=np.zeros((3, 2), np.int64)), r"input ids has shape \[3, 2\], expected \[2, \*\]"),
        (dict(weights=np.ones((2, 3), np.float32)), r"input weights has shape \[2, 3\], expected \[2, 2\]"),
        (dict(gate=np.zeros((3, 32, 67), np.uint8)), r"input gate has rows of 67 bytes, expected 68"),
        (dict(up=np.zeros((3, 31, 68), np.uint8)), r"input up has shape \[3, 31, 68\], expected \[3, 32, \*\]"),
        (dict(down=np.zeros((2, 64, 34), np.uint8)), r"input down has shape \[2, 64, 34\], expected \[3, 64, \*\]"),
        (dict(down=np.zeros((3, 64, 36), np.uint8)), r"input down has rows of 36 bytes, expected 34"),
        (dict(gate=np.zeros((0, 32, 68), np.uint8)), r"empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_input_is_named(inputs: dict[str, Any], message: str) -> None:
    layer = Layer(width=64, ffn=32, experts=3, k=2, up_type="Q8_0")
    with pytest.raises(Exception, match=r"trigraph\.GroupedExpertFFN: .*" + message):
        layer.operator(*change(layer, **inputs))


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_a_shared_expert(isa: str, shape: dict[str, Any]) -> None:
    layer = Layer(**shape, threads=1)
    rows, matrices = [*layer.tokens(21), *layer.shared(21)], layer.matrices()
    (y,) = run_rows(
        "GroupedExpertFFN",
        rows,
        matrices,
        lambda r, c: [*r[:3], *c, *r[3:]],
        {0: (np.float32, layer.width)},
        layer.attributes,
    )
    x, ids, weights, shared, gate = rows
    without = layer.run(x, ids, weights)
    np.testing.assert_allclose(y, without + shared / (1 + np.exp(-gate)), rtol=1e-4, atol=1e-5)


def run_once(layer: Layer, types: dict[str, str], **inputs: Any) -> None:
    """A session of its own for other types of inputs or other attributes."""
    values = change(layer, **inputs)
    Operator("GroupedExpertFFN", values, [np.float32], types)(*values)


@pytest.mark.parametrize(
    ("types", "inputs", "message"),
    [
        (dict(gate_type="Q8_0", down_type="Q8_0", up_type="Q8_0"), dict(up=None), r"input up is missing although"),
        (dict(gate_type="Q8_0", down_type="Q8_0"), {}, r"attribute up_type is missing although"),
        (dict(gate_type="Q8_0", down_type="Q8_0"), dict(gate=np.zeros((3, 63, 68), np.uint8), up=None), r"63 rows"),
        (dict(gate_type="Q9_K", down_type="Q8_0"), {}, r"Q9_K"),
        (dict(down_type="Q8_0"), {}, r"attribute gate_type is missing"),
        (dict(gate_type="Q8_0", down_type="Q8_0", up_type="Q8_0", activations="int3"), {}, r"int3"),
        (dict(gate_type="F32", down_type="Q8_0", up_type="Q8_0"), {}, r"input gate holds uint8, expected float32"),
        (dict(gate_type="Q8_0", down_type="Q4_K", up_type="Q8_0"), {}, r"input down: width 32 .* 256"),
    ],
)
def test_bad_types_are_named(types: dict[str, str], inputs: dict[str, Any], message: str) -> None:
    layer = Layer(width=64, ffn=32, experts=3, k=2, up_type="Q8_0")
    with pytest.raises(Exception, match=r"trigraph\.GroupedExpertFFN: .*" + message):
        run_once(layer, types, **inputs)
