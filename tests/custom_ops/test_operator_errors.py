"""What an operator is given wrongly is an ONNX Runtime error that names the operator, the input and the value.

Errors of single operators are in their own files; here are those that every operator has, for each of its inputs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuzz.calls import CALLS
from fuzz.draw import Array, Call
from support.operators.run import Operator

NAMES = {
    "BlockMatMul": ("x", "weight", "weight_1", "weight_2", "weight_3"),
    "GatedBlockMatMul": ("gate", "up", "weight"),
    "BlockGather": ("ids", "table"),
    "GatedDeltaNet": (
        "qkv", "z", "alpha", "beta", "conv", "dt_bias", "a", "norm", "past_state", "past_window", "past_gates",
        "cu_seqlens", "past_lens", "accepted", "slots_in", "slots_out",
    ),
    "GroupedExpertFFN": ("x", "ids", "weights", "gate", "down", "up", "shared", "shared_gate"),
    "RMSNorm": ("x", "weight", "residual"),
    "JoinedRMSNorm": ("x", "weight", "other", "other_weight"),
    "LayerNorm": ("x", "weight", "bias"),
    "BiasActivation": ("x", "bias", "residual"),
    "PositionRows": ("x", "bias", "table", "rows", "weights"),
    "PatchAttention": ("qkv", "places", "cu_seqlens"),
    "Router": ("logits",),
    "TopToken": ("logits",),
    "LastRows": ("cu_seqlens", "past_lens", "x", "also"),
    "PreviousRows": ("x", "before", "cu_seqlens"),
    "PagedKVWrite": (
        "k", "v", "k_norm", "past_key", "past_value", "cu_seqlens", "past_lens", "page_table", "positions",
    ),
    "PagedIndexWrite": ("k", "k_norm", "past_index", "cu_seqlens", "past_lens", "page_table"),
    "PagedSelect": ("q", "q_norm", "index", "cu_seqlens", "past_lens", "page_table"),
    "PagedAttention": ("q_gate", "q_norm", "key", "value", "cu_seqlens", "past_lens", "page_table", "positions"),
    "StreamNorm": ("x", "weight", "block", "inject"),
    "StreamMean": ("x", "logits"),
    "NgramRows": ("input_ids", "previous_ids", "cu_seqlens", "multipliers", "moduli", "offsets"),
    "NgramMix": (
        "x", "key", "query", "value", "conv_norm", "conv", "past_window", "cu_seqlens", "past_lens", "accepted",
        "slots_in", "slots_out",
    ),
}  # fmt: skip
OPTIONAL = {("BiasActivation", "residual")}  # nothing else says whether they must be there
EACH_INPUT = [(op, index) for op, names in NAMES.items() for index in range(len(names))]
INPUT_IDS = [f"{op}-{NAMES[op][index]}" for op, index in EACH_INPUT]
INT32, INT64 = ((-1, -(2**bits), 2**bits - 1) for bits in (31, 63))
UNTYPED = {
    "BlockMatMul": {"weight", "weight_1", "weight_2", "weight_3"}, "GatedBlockMatMul": {"weight"},
    "BlockGather": {"table"}, "GroupedExpertFFN": {"gate", "down", "up"},
}  # fmt: skip
# Of float32 or float16, which nothing else fixes.
OF_TWO_TYPES = {"past_index", "index"}
# Axes that nothing else fixes.
FREE = {
    "BlockMatMul": {("x", 0), ("weight", 0), ("weight_1", 0), ("weight_2", 0), ("weight_3", 0)},
    "GatedBlockMatMul": {("weight", 0)},
    "BlockGather": {("ids", 0), ("table", 0), ("table", 1)},
    "LayerNorm": {("x", 0)},
    "PositionRows": {("table", 0)},
    "Router": {("logits", 0), ("logits", 1)},
    "TopToken": {("logits", 0), ("logits", 1)},
    "LastRows": {("x", 1), ("also", 1)},
    "NgramMix": {("past_window", 0), ("past_window", 1)},
    "PagedIndexWrite": {("past_index", 0), ("past_index", 1)},
    "PagedSelect": {("index", 0), ("index", 1)},
}


def valid_call(op: str) -> Call:
    """A call with at least one element in each input that the operator has."""
    for seed in range(10000):
        call = replace(CALLS[op](random.Random(seed)), alias={})
        if len(call.inputs) == len(NAMES[op]) and all(array is not None and array.size > 1 for array in call.inputs):
            return call
    raise AssertionError(f"no full call of {op}")


def run(call: Call, **changes: Any) -> None:
    inputs = list(call.inputs)
    for name, array in changes.items():
        inputs[NAMES[call.op].index(name)] = array
    Operator(call.op, inputs, call.output_types, call.attributes)(*inputs)


def get(call: Call, name: str) -> Array:
    array = call.inputs[NAMES[call.op].index(name)]
    assert array is not None
    return array


@pytest.mark.parametrize(("op", "index"), EACH_INPUT, ids=INPUT_IDS)
def test_another_rank(op: str, index: int) -> None:
    call, name = valid_call(op), NAMES[op][index]
    array = get(call, name)
    with pytest.raises(Exception, match=rf"trigraph\.{op}: input {name} has 7 dimensions, more than 6"):
        run(call, **{name: array.reshape([1] * (7 - array.ndim) + list(array.shape))})
    with pytest.raises(Exception, match=rf"trigraph\.{op}: input {name} has (shape|\d+ dimensions)"):
        run(call, **{name: array[np.newaxis]})


@pytest.mark.parametrize(("op", "index"), EACH_INPUT, ids=INPUT_IDS)
def test_another_length(op: str, index: int) -> None:
    """One element less along an axis contradicts another input, which may be the one that is named."""
    call, name = valid_call(op), NAMES[op][index]
    array = get(call, name)
    for axis in range(array.ndim):
        if (name, axis) in FREE.get(op, ()):
            continue
        shorter = np.ascontiguousarray(np.delete(array, 0, axis))
        try:
            run(call, **{name: shorter})
        except Exception as error:
            assert f"trigraph.{op}: " in str(error)
            assert "input " in str(error)
        else:
            # Fewer slots, pages, experts a token or columns of a table can be valid.
            assert (name, axis) in {("page_table", 1), ("past_gates", 1)}, f"{name} accepted without one of axis {axis}"


@pytest.mark.parametrize(("op", "index"), EACH_INPUT, ids=INPUT_IDS)
def test_another_type(op: str, index: int) -> None:
    """ONNX Runtime refuses a type by the operator's signature, the operator one that its attribute contradicts."""
    call, name = valid_call(op), NAMES[op][index]
    array = get(call, name)
    for dtype in (np.float32, np.float16, np.uint8, np.int32, np.int64):
        if array.dtype == dtype or (name in OF_TWO_TYPES and dtype in (np.float32, np.float16)):
            continue
        text = rf"trigraph\.{op}: input {name} holds" if name in UNTYPED.get(op, ()) else rf"{op}|input {name}|x{index}"
        with np.errstate(invalid="ignore", over="ignore"):
            changed = array.astype(dtype)
        with pytest.raises(Exception, match=text):
            run(call, **{name: changed})


@pytest.mark.parametrize(("op", "index"), EACH_INPUT, ids=INPUT_IDS)
def test_a_missing_input(op: str, index: int) -> None:
    call, name = valid_call(op), NAMES[op][index]
    if (op, name) in OPTIONAL:
        run(call, **{name: None})
        return
    with pytest.raises(Exception, match=rf"{op}|{name}"):
        run(call, **{name: None})


def attributes() -> Iterator[Any]:
    for op in NAMES:
        for name, value in valid_call(op).attributes.items():
            if name not in ("activations", "gate", "causal", "window"):  # which have defaults
                yield op, name, None, rf"attribute (up_type|{name}) is missing"
                yield op, name, [1, 2], rf"attribute (up_type|{name}) (is missing|has 2 numbers)"
            if isinstance(value, str):
                yield op, name, "Q9_K", "Q9_K"
                yield op, name, "x" * 100, f"attribute {name} is missing or is not a short string|up_type"
    for op in ("StreamNorm", "StreamMean", "NgramMix"):
        yield op, "streams", 0, "attribute streams is 0, expected at least 1"
    yield "NgramMix", "streams", 1 << 62, "input x has rows of width"
    for value in (0, 1 << 62):
        yield "NgramMix", "dilation", value, f"attribute dilation is {value}, expected 1 to 2147483647"
    yield "NgramMix", "commit", 2, "attribute commit is 2, expected 0 or 1"
    yield "NgramRows", "eos", -1, "attribute eos is -1, expected at least 0"
    for name, value, text in (
        ("k_heads", 0, "attribute k_heads is 0, expected at least 1"),
        ("k_heads", -(2**63), "attribute k_heads is -9223372036854775808"),
        ("tiled", 2, "attribute tiled is 2, expected 0 or 1"),
        ("commit", -1, "attribute commit is -1, expected 0 or 1"),
    ):
        yield "GatedDeltaNet", name, value, text
    for value in (-1, 1 << 31):
        yield "PagedAttention", "window", value, f"attribute window is {value}, outside 0 to 1073741824"
    yield "PagedSelect", "top", 0, "attribute top is 0, expected at least 1"
    for op in ("PagedIndexWrite", "PagedSelect"):
        for size in (0, -4, 2**40):
            yield op, "group", size, f"attribute group is {size}, expected a divisor of the"
    for op in ("PagedKVWrite", "PagedAttention", "PagedIndexWrite", "PagedSelect"):
        for name, value, text in (
            ("rope_dims", 2**62, "attribute rope_dims is 4611686018427387904"),
            ("rope_theta", 0.0, "attribute rope_theta is 0, not above 0"),
            ("rope_theta", float("nan"), "attribute rope_theta is nan"),
            ("eps", -1.0, "attribute eps is -1, below 0"),
        ):
            yield op, name, value, text


@pytest.mark.parametrize(("op", "name", "value", "text"), list(attributes()))
def test_attributes(op: str, name: str, value: Any, text: str) -> None:
    call = valid_call(op)
    changed = {key: item for key, item in {**call.attributes, name: value}.items() if item is not None}
    with pytest.raises(Exception, match=rf"trigraph\.{op}: .*({text})"):
        run(replace(call, attributes=changed))


@pytest.mark.parametrize(
    ("op", "name", "shape", "text"),
    [
        ("PagedKVWrite", "past_key", (3, 0, 2, 32), "input past_key has an empty page"),
        ("PagedKVWrite", "past_key", (3, 4, 0, 32), "input past_key has no heads"),
        ("PagedKVWrite", "past_key", (3, 4, 2, 0), "input past_key has head dimension 0, not a multiple of 16"),
        ("PagedAttention", "key", (3, 0, 2, 32), "input key has an empty page"),
        ("PagedIndexWrite", "past_index", (3, 0, 32), "input past_index has an empty page"),
        ("PagedIndexWrite", "past_index", (3, 4, 0), "input past_index has head dimension 0, not a multiple of 16"),
        ("PagedSelect", "index", (3, 4, 40), "input index has head dimension 40, not a multiple of 16"),
    ],
)
def test_caches_of_nothing(op: str, name: str, shape: tuple[int, ...], text: str) -> None:
    call = valid_call(op)
    cache = np.zeros(shape, get(call, name).dtype)
    with pytest.raises(Exception, match=rf"trigraph\.{op}: {text}"):
        run(call, **({name: cache} if "index" in name else {name: cache, name.replace("key", "value"): cache}))


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (op, name)
        for op, names in NAMES.items()
        for name in names
        if name in {"cu_seqlens", "past_lens", "ids", "weights"} and op != "BlockGather"
    ],
)
def test_nothing_at_all(op: str, name: str) -> None:
    call = valid_call(op)
    with pytest.raises(Exception, match=rf"trigraph\.{op}: input"):
        run(call, **{name: get(call, name)[:0]})


@pytest.mark.parametrize(
    ("op", "name", "values"),
    [
        ("BlockGather", "ids", INT64),
        ("GroupedExpertFFN", "ids", INT64),
        ("GatedDeltaNet", "accepted", INT32),
        ("GatedDeltaNet", "slots_in", INT32),
        ("GatedDeltaNet", "slots_out", INT32),
        ("GatedDeltaNet", "cu_seqlens", INT32),
        ("GatedDeltaNet", "past_lens", (-1, -(2**31))),
        ("LastRows", "cu_seqlens", INT32),
        ("LastRows", "past_lens", (-1, -(2**31))),
        ("PreviousRows", "cu_seqlens", INT32),
        ("PositionRows", "rows", INT32),
        ("PatchAttention", "places", (-1, -(2**31))),
        ("PatchAttention", "cu_seqlens", INT32),
        ("PagedKVWrite", "page_table", INT32),
        ("PagedKVWrite", "cu_seqlens", INT32),
        ("PagedKVWrite", "past_lens", INT32),
        ("PagedIndexWrite", "cu_seqlens", INT32),
        ("PagedIndexWrite", "past_lens", INT32),
        ("PagedSelect", "cu_seqlens", INT32),
        ("PagedSelect", "past_lens", INT32),
        ("PagedAttention", "page_table", INT32),
        ("PagedAttention", "cu_seqlens", INT32),
        ("PagedAttention", "past_lens", INT32),
    ],
)
def test_extreme_indices(op: str, name: str, values: tuple[int, ...]) -> None:
    call = valid_call(op)
    for value in values:
        array = get(call, name).copy()
        if name == "page_table":
            array[...] = value  # a write need not reach a sequence's first page
        else:
            array.flat[-1 if name == "cu_seqlens" else 0] = value
        with pytest.raises(Exception, match=rf"trigraph\.{op}: input (cu_seqlens|page_table|{name}).*") as error:
            run(call, **{name: array})
        assert str(value) in str(error.value) or name in ("past_lens", "cu_seqlens"), str(error.value)
