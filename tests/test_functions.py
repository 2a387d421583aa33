"""Function bodies of the operators, in sessions without the library: against the references and against the kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from onnx import TensorProto, helper

from support.expert_layer import SHAPES as FFN_SHAPES
from support.expert_layer import Layer, name_of, relative_error
from support.gdn_cases import EPS, SHAPES, Kernel, Shape, empty_state, make_step, random_rows, random_state
from support.gdn_cases import random_weights as gdn_weights
from support.operators import ONNX_TYPE, Operator
from trigraph.custom_ops import DOMAIN
from trigraph.custom_ops.block_matmul.reference import block_matmul, gated_block_matmul
from trigraph.custom_ops.blocks.function import UNPACK
from trigraph.custom_ops.blocks.reference import unpack
from trigraph.custom_ops.bodies import bodies, overload
from trigraph.custom_ops.gated_delta_net.reference import State, Step
from trigraph.custom_ops.paged_attention.reference import paged_attention, paged_kv_write
from trigraph.custom_ops.rms_norm.reference import rms_norm
from trigraph.custom_ops.router.reference import router
from trigraph.custom_ops.rows.reference import last_rows, previous_rows
from trigraph.custom_ops.top_token.reference import top_token
from trigraph.models.synth.blocks import HALVES
from trigraph.models.tensor_types import BLOCK_TYPES, TENSOR_TYPES

Array = NDArray[Any]
ROTARY: dict[str, Any] = {"rope_dims": 16, "rope_theta": 1e7, "eps": 1e-6}
# Sums of float32 in another order.
TOLERANCE = 3e-6


class Body:
    """One operator's body in a session of its own: called with arrays, like `Operator`."""

    def __init__(
        self, op_type: str, inputs: Sequence[Any], output_types: Sequence[Any], attributes: Mapping[str, Any]
    ) -> None:
        names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
        while not names[-1]:
            names.pop()
        self._names = [name for name in names if name]
        outputs = [f"y{i}" for i in range(len(output_types))]
        node = helper.make_node(op_type, names, outputs, domain=DOMAIN, **attributes)
        node.overload = overload(attributes, len(names))
        graph = helper.make_graph(
            [node],
            op_type,
            [
                helper.make_tensor_value_info(name, _type(x), [None] * _values(x).ndim)
                for name, x in zip(self._names, (x for x in inputs if x is not None), strict=True)
            ],
            [
                helper.make_tensor_value_info(name, ONNX_TYPE[np.dtype(dtype)], None)
                for name, dtype in zip(outputs, output_types, strict=True)
            ],
        )
        functions = {
            (function.name, function.overload): function for function in bodies(op_type, attributes, len(names))
        }
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11, functions=list(functions.values()))
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def __call__(self, *inputs: Any) -> list[Array]:
        given = [x for x in inputs if x is not None]
        feeds = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(_values(x)), _type(x))
            for name, x in zip(self._names, given, strict=True)
        }
        return [value.numpy() for value in self._session.run_with_ort_values(None, feeds)]


def _type(x: Any) -> int:
    return TensorProto.BFLOAT16 if isinstance(x, tuple) else ONNX_TYPE[x.dtype]


def _values(x: Any) -> Array:
    return np.asarray(x[1] if isinstance(x, tuple) else x)


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
    for at in HALVES[type]:
        scales = rng.uniform(-0.1, 0.1, raw.shape[:2]).astype(np.float16)
        scales[0, 0] = 3e-7  # subnormal
        raw[..., at : at + 2] = scales[..., None].view(np.uint8)
    raw = raw.reshape(rows, -1)
    return raw, raw


def width_of(type: str, blocks: int) -> int:
    return blocks * int(GGML_QUANT_SIZES[GGMLQuantizationType[type]][0]) if type in BLOCK_TYPES else 33 * blocks


def test_every_type_that_a_kernel_reads_has_a_body() -> None:
    """And the README knows it. The library names its types when it refuses one."""
    with pytest.raises(Exception, match="has no kernel, expected one of") as refused:
        Operator("BlockGather", [np.zeros(1, np.int64), np.zeros((1, 1), np.uint8)], [np.float32], {"type": "Q9"})
    native = re.findall(r"[A-Z]+\d+\w*", str(refused.value).split("expected one of ")[1])
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
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


# lengths, past_lens, accepted, slots_in, slots_out; every slot has K tokens pending
STEPS: list[tuple[list[int], ...]] = [
    ([1], [0], [0], [2], [2]),
    ([5, 1, 8], [9, 0, 11], [8, 0, 3], [0, 2, 1], [0, 3, 1]),
    ([1, 2], [4, 4], [0, 4], [1, 1], [2, 4]),
    ([3], [1], [1], [4], [0]),
]


@pytest.mark.parametrize("commit", [False, True], ids=["verify", "prefill"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated_delta_net(shape: Shape, commit: bool) -> None:
    rng = np.random.default_rng(0)
    kernel = Kernel(shape, gdn_weights(rng, shape), commit=commit, aliased=False)
    state = random_state(rng, shape, 5)
    for lengths, *rest in STEPS:
        step, rows = make_step(lengths, *rest), random_rows(rng, shape, sum(lengths))
        found = run_gated_delta_net(kernel, state, step, rows)
        for expected in (kernel.reference(rows, state, step), kernel(rows, state, step)):
            for actual, wanted in zip(found, flat(expected), strict=True):
                np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))


def test_gated_delta_net_does_not_read_a_slot_at_the_start_of_a_text() -> None:
    rng, shape = np.random.default_rng(1), SHAPES[0]
    kernel = Kernel(shape, gdn_weights(rng, shape), commit=True)
    step, rows = make_step([70, 3], [0, 0], [0, 0], [1, 0]), random_rows(rng, shape, 73)
    y, *present = run_gated_delta_net(kernel, empty_state(shape, 2), step, rows)
    wanted, state = kernel.reference(rows, empty_state(shape, 2), step)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))
    np.testing.assert_allclose(present[0], state.state, rtol=0, atol=1e-5)


def run_gated_delta_net(kernel: Kernel, state: State, step: Step, rows: Any) -> list[Array]:
    inputs = kernel._inputs(rows, state, step)
    shape = kernel.shape
    attributes = {"k_heads": shape.k_heads, "eps": EPS, "tiled": int(shape.tiled), "commit": int(kernel.commit)}
    return Body("GatedDeltaNet", inputs, [np.float32] * 4, attributes)(*inputs)


def flat(result: tuple[Array, State]) -> list[Array]:
    y, state = result
    return [y, state.state, state.window, state.gates]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("heads, kv_heads, width, page", [(4, 2, 32, 8), (6, 1, 48, 5), (3, 3, 16, 64)])
def test_attention(dtype: Any, heads: int, kv_heads: int, width: int, page: int) -> None:
    """Three ragged sequences on scattered pages; what is past the end of a text is NaN, and nonsense in the table."""
    rng = np.random.default_rng(0)
    lengths, past = [3, 1, 7], [0, 2 * page + 1, page - 2]
    cu, past_lens = np.array([0, 3, 4, 11], np.int32), np.array(past, np.int32)
    table = np.array([[5, 99, 99, -1], [1, 7, 2, 99], [3, 0, 4, 99]], np.int32)
    cache = [rng.standard_normal((9, page, kv_heads, width)).astype(dtype) for _ in range(2)]
    for s, (start, count) in enumerate(zip(past, lengths, strict=True)):
        for position in range(start + count, 3 * page):
            if 0 <= table[s, position // page] < 9:
                for part in cache:
                    part[table[s, position // page], position % page] = np.nan
    k, v = (rng.standard_normal((11, kv_heads * width), dtype=np.float32) for _ in range(2))
    q = rng.standard_normal((11, heads * 2 * width), dtype=np.float32)
    norm = rng.uniform(0.5, 1.5, width).astype(np.float32)
    sequences = [cu, past_lens, table]

    writes: list[Any] = [k, v, norm, *cache, *sequences]
    present = Body("PagedKVWrite", writes, [dtype] * 2, ROTARY)(*writes)
    shapes = [part.shape for part in cache]
    kernel = Operator("PagedKVWrite", writes, [dtype] * 2, ROTARY)(*writes, output_shapes=shapes)
    tolerance = 2e-3 if dtype == np.float16 else 1e-5
    for found, wanted, own in zip(present, paged_kv_write(*writes, **ROTARY), kernel, strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
        np.testing.assert_allclose(found, own, rtol=0, atol=tolerance)

    reads: list[Any] = [q, norm, *present, *sequences]
    (y,) = Body("PagedAttention", reads, [np.float32], ROTARY)(*reads)
    np.testing.assert_allclose(y, np.asarray(paged_attention(*reads, **ROTARY)), rtol=0, atol=1e-5)
    own = Operator("PagedAttention", reads, [np.float32], ROTARY)(*reads)[0]
    np.testing.assert_allclose(y, own, rtol=0, atol=1e-5)


def test_rotary_angles_far_into_a_text() -> None:
    """Float32 angles would be off by hundredths at position 250,000."""
    rng = np.random.default_rng(0)
    inputs: list[Any] = [
        *(rng.standard_normal((2, 32), dtype=np.float32) for _ in range(2)),
        np.ones(32, np.float32),
        *(np.zeros((2, 64, 1, 32), np.float32) for _ in range(2)),
        np.array([0, 2], np.int32),
        np.array([250_000], np.int32),
        np.tile(np.array([0, 1], np.int32), 2048)[None],
    ]
    key, _ = Body("PagedKVWrite", inputs, [np.float32] * 2, ROTARY)(*inputs)
    np.testing.assert_allclose(key, np.asarray(paged_kv_write(*inputs, **ROTARY)[0]), rtol=0, atol=1e-5)
