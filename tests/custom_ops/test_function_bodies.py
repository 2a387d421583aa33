"""Function bodies of the operators, in sessions without the library: against the references and against the kernels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from support.operators.block_weights import put_scales
from support.operators.body import Body
from support.operators.expert_layer import SHAPES as FFN_SHAPES
from support.operators.expert_layer import Layer, name_of, relative_error
from support.operators.run import Operator
from trigraph.custom_ops.block_matmul.reference import block_matmul, gated_block_matmul
from trigraph.custom_ops.blocks.formats.function import UNPACK
from trigraph.custom_ops.blocks.formats.reference import unpack
from trigraph.custom_ops.rms_norm.reference import joined_rms_norm, rms_norm
from trigraph.custom_ops.router.reference import router
from trigraph.custom_ops.rows.reference import last_rows, previous_rows
from trigraph.custom_ops.top_token.reference import top_token
from trigraph.models.tensor_types import BLOCK_TYPES, TENSOR_TYPES

Array = NDArray[Any]
# Sums of float32 in another order.
TOLERANCE = 3e-6


def draw(type: str, rows: int, width: int) -> tuple[Any, Array]:
    """A random matrix of a type as an operator takes it, and as the reference does."""
    rng = np.random.default_rng(rows + width)
    values = rng.standard_normal((rows, width), dtype=np.float32)
    if type == "F32":
        return values, values
    if type == "F16":
        return values.astype(np.float16), values.astype(np.float16)
    if type == "BF16":
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return ("bf16", bits), bits
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[type]]
    raw = rng.integers(0, 256, (rows, width // block, size), dtype=np.uint8)

    def scales() -> Array:
        values = rng.uniform(-0.1, 0.1, raw.shape[:2]).astype(np.float16)
        values[0, 0] = 3e-7  # subnormal
        return values

    put_scales(type, raw, scales)
    raw = raw.reshape(rows, -1)
    return raw, raw


def width_of(type: str, blocks: int) -> int:
    return blocks * int(GGML_QUANT_SIZES[GGMLQuantizationType[type]][0]) if type in BLOCK_TYPES else 33 * blocks


def test_every_type_that_a_kernel_reads_has_a_body() -> None:
    """And the README knows it. The library names its types when it refuses one."""
    with pytest.raises(Exception, match="has no kernel, expected one of") as refused:
        Operator("BlockGather", [np.zeros(1, np.int64), np.zeros((1, 1), np.uint8)], [np.float32], {"type": "Q9"})
    native = re.findall(r"[A-Z]+\d+\w*", str(refused.value).split("expected one of ")[1])
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    listed = re.search(r"^\| block types[^|]*\|(.*)\|$", readme, re.MULTILINE)
    assert listed is not None
    assert set(UNPACK) == set(native) == set(TENSOR_TYPES) == {name.strip() for name in listed[1].split(",")}


@pytest.mark.parametrize("type", UNPACK)
def test_block_gather(type: str) -> None:
    """Weights are unpacked to the same bits."""
    table, known = draw(type, 11, width_of(type, 3))
    ids = np.array([10, 0, 3, 3, 7])
    (y,) = Body("BlockGather", [ids, table], [np.float32], {"type": type})(ids, table)
    expected = unpack(known[ids], type)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("type", UNPACK)
def test_block_matmul(type: str) -> None:
    weight, known = draw(type, 13, width_of(type, 3))
    attributes = {"types": type, "activations": "float32"}
    x = np.random.default_rng(0).standard_normal((9, width_of(type, 3)), dtype=np.float32)
    body = Body("BlockMatMul", [x, weight], [np.float32], attributes)
    kernel = Operator("BlockMatMul", [x, weight], [np.float32], attributes)
    for count in (0, 1, 2, 9):
        (y,) = body(x[:count], weight)
        assert y.shape == (count, 13)
        if count:
            assert relative_error(y, block_matmul(x[:count], known, type)) < TOLERANCE
            assert relative_error(y, kernel(x[:count], weight)[0]) < TOLERANCE


@pytest.mark.parametrize("types", [("Q4_K", "Q6_K"), ("F32", "F16", "Q8_0"), ("F32", "F32", "Q8_0", "Q8_0")])
def test_block_matmul_of_several_weights(types: tuple[str, ...]) -> None:
    drawn = [draw(type, 5 + i, 512) for i, type in enumerate(types)]
    attributes = {"types": ",".join(types), "activations": "float32"}
    x = np.random.default_rng(0).standard_normal((3, 512), dtype=np.float32)
    inputs = [x, *(weight for weight, _ in drawn)]
    results = Body("BlockMatMul", inputs, [np.float32] * len(types), attributes)(*inputs)
    for y, type, (_, known) in zip(results, types, drawn, strict=True):
        assert relative_error(y, block_matmul(x, known, type)) < TOLERANCE


def test_gated_block_matmul() -> None:
    weight, known = draw("Q5_K", 13, 512)
    gate, up = np.random.default_rng(0).standard_normal((2, 7, 512), dtype=np.float32)
    attributes = {"type": "Q5_K", "activations": "float32"}
    (y,) = Body("GatedBlockMatMul", [gate, up, weight], [np.float32], attributes)(gate, up, weight)
    assert relative_error(y, gated_block_matmul(gate, up, known, "Q5_K")) < TOLERANCE


def test_rms_norm() -> None:
    x, residual = np.random.default_rng(0).standard_normal((2, 5, 33), dtype=np.float32)
    weight = np.random.default_rng(1).uniform(0.5, 1.5, 33).astype(np.float32)
    (y,) = Body("RMSNorm", [x, weight], [np.float32], {"eps": 1e-6})(x, weight)
    np.testing.assert_allclose(y, rms_norm(x, weight, eps=1e-6)[0], rtol=1e-5, atol=1e-6)
    found = Body("RMSNorm", [x, weight, residual], [np.float32] * 2, {"eps": 1e-6})(x, weight, residual)
    for one, other in zip(found, rms_norm(x, weight, residual, eps=1e-6), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_joined_rms_norm() -> None:
    x, other = (np.random.default_rng(0).standard_normal((5, width), dtype=np.float32) for width in (33, 20))
    weights = [np.random.default_rng(1).uniform(0.5, 1.5, width).astype(np.float32) for width in (33, 20)]
    inputs = [x, weights[0], other, weights[1]]
    (y,) = Body("JoinedRMSNorm", inputs, [np.float32], {"eps": 1e-6})(*inputs)
    np.testing.assert_allclose(y, joined_rms_norm(*inputs, eps=1e-6), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normalize", [0, 1])
def test_router(normalize: int) -> None:
    logits = np.random.default_rng(0).integers(-3, 4, (9, 40)).astype(np.float32)
    attributes = {"k": 5, "normalize": normalize}
    ids, weights = Body("Router", [logits], [np.int64, np.float32], attributes)(logits)
    expected_ids, expected = router(logits, k=5, normalize=bool(normalize))
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_top_token() -> None:
    logits = np.random.default_rng(0).integers(-9, 4, (9, 5000)).astype(np.float32)
    (tokens,) = Body("TopToken", [logits], [np.int64], {"probability": 0})(logits)
    again, probability = Body("TopToken", [logits], [np.int64, np.float32], {"probability": 1})(logits)
    expected, wanted = top_token(logits)
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_array_equal(again, expected)
    np.testing.assert_allclose(probability, wanted, rtol=1e-5)


@pytest.mark.parametrize("lengths", [[1], [4], [2, 1, 5]], ids=str)
def test_rows(lengths: list[int]) -> None:
    cu_seqlens, past_lens = np.cumsum([0, *lengths]).astype(np.int32), np.arange(len(lengths), dtype=np.int32) * 7
    x, also = np.random.default_rng(0).standard_normal((2, sum(lengths), 6), dtype=np.float32)
    types = [np.int32, np.int32, np.float32, np.float32]
    for inputs in ([cu_seqlens, past_lens, x], [cu_seqlens, past_lens, x, also]):
        found = Body("LastRows", inputs, types[: len(inputs)], {})(*inputs)
        for one, other in zip(found, last_rows(*inputs), strict=False):
            np.testing.assert_array_equal(one, other)
    before = also[: len(lengths)]
    (y,) = Body("PreviousRows", [x, before, cu_seqlens], [np.float32], {})(x, before, cu_seqlens)
    np.testing.assert_array_equal(y, previous_rows(x, before, cu_seqlens))


@pytest.mark.parametrize("shape", FFN_SHAPES, ids=name_of)
def test_a_shared_expert(shape: dict[str, Any]) -> None:
    layer = Layer(**shape)
    x, ids, weights = layer.tokens(7)
    shared, shared_gate = layer.shared(7)
    inputs = [x, ids, weights, *layer.matrices(), shared, shared_gate]
    (y,) = Body("GroupedExpertFFN", inputs, [np.float32], layer.attributes)(*inputs)
    expected = layer.expected(x, ids, weights, shared, shared_gate)
    assert relative_error(y, expected) < TOLERANCE


@pytest.mark.parametrize("shape", FFN_SHAPES, ids=name_of)
def test_grouped_expert_ffn(shape: dict[str, Any]) -> None:
    layer = Layer(**shape)
    matrices = layer.matrices()
    body = Body("GroupedExpertFFN", [*layer.tokens(1), *matrices], [np.float32], layer.attributes)
    for count in (1, 3, 17):
        tokens = layer.tokens(count, seed=count)
        (y,) = body(*tokens, *matrices)
        assert relative_error(y, layer.expected(*tokens)) < TOLERANCE
        assert relative_error(y, layer.run(*tokens)) < TOLERANCE
