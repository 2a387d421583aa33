"""Native operators: the bits of a row must not depend on the rows beside it, at the shapes that graphs have.

Rows alone are copies: a view would keep the alignment that the row had beside the others, and hide what depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.hollow import write_hollow
from support.operators import provider
from trigraph.custom_ops import DOMAIN
from trigraph.exporter import ExportOptions, export

Array = npt.NDArray[np.generic]
THREADS = (1, 2)
GEOMETRIES = ("tiny-moe", "qwen3.5-0.8b", "qwen3.6-27b", "qwen3.6-35b-a3b", "qwen3-next-80b-a3b")


def session(model: onnx.ModelProto, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model.SerializeToString(), options, providers=[provider()])


def rows_that_differ(model: onnx.ModelProto, feeds: Mapping[str, Array], threads: int) -> list[str]:
    """Outputs of which a row has other bits beside 1 to 7 others than alone."""
    run = session(model, threads)
    names = [output.name for output in run.get_outputs()]
    rows = len(next(iter(feeds.values())))
    alone = [run.run(names, {name: x[row : row + 1].copy() for name, x in feeds.items()}) for row in range(rows)]
    differing = set()
    for count in range(2, rows + 1):
        together = run.run(names, {name: x[:count].copy() for name, x in feeds.items()})
        for index, (name, result) in enumerate(zip(names, together, strict=True)):
            if any(result[row].tobytes() != alone[row][index][0].tobytes() for row in range(count)):
                differing.add(name)
    return sorted(differing)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: Mapping[str, Array],
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "native", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def native_part(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """A graph without its custom nodes: what they make becomes an input, what they take an output."""
    graph = model.graph
    infos = {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    native = [node for node in graph.node if node.domain != DOMAIN]
    custom = [node for node in graph.node if node.domain == DOMAIN]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    made = {name for node in native for name in node.output}
    taken = {name for node in native for name in node.input}
    wanted = {name for node in custom for name in node.input} | {output.name for output in graph.output}
    weights: dict[str, Array] = {}
    for name in taken & set(constants):
        tensor = constants[name]
        small = tensor.data_location != TensorProto.EXTERNAL
        weights[name] = numpy_helper.to_array(tensor) if small else rng.standard_normal(tensor.dims).astype(np.float32)
    return model_of(
        native,
        [infos[name] for name in sorted(taken - made - set(constants))],
        [infos[name] for name in sorted(made & wanted)],
        weights,
    )


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_native_part_of_verify(geometry: str, tmp_path: Path) -> None:
    """Every native node of a verify graph, with ONNX Runtime's own fusions, at the dimensions of a real model."""
    path = write_hollow(geometry, tmp_path / "model.gguf", layers=4, vocab=1000)
    export(path, tmp_path / "package", ExportOptions())
    rng = np.random.default_rng(0)
    model = native_part(onnx.load(tmp_path / "package/verify.onnx", load_external_data=False), rng)
    feeds = {
        info.name: rng.standard_normal((8, info.type.tensor_type.shape.dim[1].dim_value)).astype(np.float32) * 3
        for info in model.graph.input
    }
    assert len(model.graph.output) > 12
    for threads in THREADS:
        assert rows_that_differ(model, feeds, threads) == []


def unary(op_type: str, width: int, constants: Mapping[str, Array], **attributes: Any) -> onnx.ModelProto:
    """One operator on x [T, width], with any further inputs constant."""
    node = helper.make_node(op_type, ["x", *constants], ["y"], **attributes)
    dtype = TensorProto.INT64 if op_type == "ArgMax" else TensorProto.FLOAT
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", width])
    return model_of([node], [x], [helper.make_tensor_value_info("y", dtype, None)], constants)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 10, 17, 96, 129, 256, 1024, 5120, 17408])
def test_single_operators(width: int, threads: int) -> None:
    """Elementwise operators, Softmax and the norm also at odd widths, where vector tails could differ."""
    rng = np.random.default_rng(width)
    x = rng.standard_normal((8, width)).astype(np.float32) * 4
    weight = rng.standard_normal(width).astype(np.float32)
    ties = np.round(x)
    for model, rows in (
        (unary("Sigmoid", width, {}), x),
        (unary("Softmax", width, {}, axis=-1), x),
        (unary("RMSNormalization", width, {"w": weight}, axis=-1), x),
        (unary("Mul", width, {"w": weight}), x),
        (unary("Add", width, {"w": weight}), x),
        (unary("ArgMax", width, {}, axis=-1, keepdims=0), ties),
        (unary("ReduceMax", width, {"axes": np.array([-1])}, keepdims=0), x),
    ):
        assert rows_that_differ(model, {"x": rows}, threads) == [], model.graph.node[0].op_type


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("experts", "used"), [(8, 2), (16, 4), (24, 5), (256, 8), (512, 10)])
def test_router(experts: int, used: int, threads: int) -> None:
    """The k largest logits and their softmax, with ties among the logits; the lower id comes first."""
    nodes = [helper.make_node("TopK", ["x", "k"], ["top", "ids"]), helper.make_node("Softmax", ["top"], ["weights"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", experts])
    outputs = [
        helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["T", used]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["T", used]),
    ]
    model = model_of(nodes, [x], outputs, {"k": np.array([used])})
    rows = np.round(np.random.default_rng(used).standard_normal((8, experts)) * 4).astype(np.float32) / 2
    assert rows_that_differ(model, {"x": rows}, threads) == []
    (ids,) = session(model, threads).run(["ids"], {"x": rows})
    np.testing.assert_array_equal(ids, np.argsort(-rows, axis=-1, kind="stable")[:, :used])


@pytest.mark.parametrize("threads", THREADS)
def test_probability_of_the_draft(threads: int) -> None:
    """The largest of a softmax over a whole vocabulary."""
    vocab = 248320
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], axis=-1),
        helper.make_node("ReduceMax", ["p", "axes"], ["y"], keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", vocab])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T"])
    model = model_of(nodes, [x], [y], {"axes": np.array([-1])})
    rows = np.random.default_rng(0).standard_normal((8, vocab)).astype(np.float32)
    assert rows_that_differ(model, {"x": rows}, threads) == []
