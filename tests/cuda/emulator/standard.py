"""ONNX's own operators that the CUDA library has: the bits of ONNX Runtime's on a CPU, and errors.

tests/cuda/test_cuda.py runs this with the library of the emulator, tools/gpu.py on a GPU.
"""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from support.operators.block_weights import activations
from support.operators.fusion import check, model_of, run, session_of
from trigraph.runtime.device.cuda.fusion import fuse


def standard(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """A node of ONNX's own."""
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def test_rows_side_by_side() -> None:
    """Of one tensor several times, and of several; more of them than a node takes stay as they are."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((5, width), dtype=np.float32) for name, width in (("x", 300), ("y", 7))}
    nodes = [
        helper.make_node("Concat", ["x"] * 4, ["copies"], axis=1),
        helper.make_node("Concat", ["y", "x", "y"], ["mixed"], axis=1),
        helper.make_node("Concat", ["y"] * 9, ["many"], axis=1),
        helper.make_node("Concat", ["x", "x"], ["below"], axis=0),
    ]
    outputs = dict.fromkeys(("copies", "mixed", "many", "below"), np.float32)
    check(nodes, inputs, outputs, ["JoinColumns", "JoinColumns", "Concat", "Concat"])


@pytest.mark.parametrize("rows", [1, 3, 300])
def test_operators_of_onnx(rows: int) -> None:
    """As graphs have them; their results may be shapes that another node reads, or a graph's."""
    rng = np.random.default_rng(rows)
    inputs: dict[str, Any] = {
        "x": rng.standard_normal((rows, 6), dtype=np.float32),
        "ids": rng.integers(0, 6, (rows, 4)),
        "columns": np.array([5, 0, 3]),
        "table": rng.standard_normal(6, dtype=np.float32),
        "tokens": rng.integers(-(2**62), 2**62, 6),
        "factor": np.array([3.7], np.float32),
        "cap": np.array(30, np.float32),
        "pairs": np.array([-1, 2]),
        "flat": np.array([-1]),
        "edges": np.array([-1, 1, 4]),
    }
    nodes = [
        standard("Gather", "x columns", "taken", axis=1),
        standard("Gather", "table ids", "factors"),
        standard("Gather", "tokens ids", "named"),
        standard("Mul", "factors factors", "squares"),
        standard("Mul", "x factor", "scaled"),
        standard("Div", "scaled cap", "of_cap"),
        standard("Reshape", "of_cap pairs", "paired"),
        standard("Mul", "paired cap", "wide"),
        standard("Reshape", "ids flat", "in_line"),
        standard("Reshape", "squares edges", "edged"),
    ]
    outputs = dict.fromkeys(("taken", "squares", "wide", "edged"), np.float32) | {
        "named": np.int64,
        "in_line": np.int64,
    }
    check(nodes, inputs, outputs, [node.op_type for node in nodes])
    model = model_of([standard("Tanh", "x", "y")], {"x": inputs["x"]}, {"y": np.float32})
    fuse(model)
    (found,) = run(session_of(model, "cuda"), {"x": inputs["x"]}, ["y"])
    np.testing.assert_allclose(found, np.tanh(inputs["x"]), rtol=1e-6)


@pytest.mark.parametrize("places", [[], [4], [6, 0, 3]], ids=str)
def test_rows_of_images(places: list[int]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((len(places), 300), dtype=np.float32)
    inputs = {"x": activations(7, 300), "places": np.array(places, np.int64).reshape(-1, 1), "rows": rows}
    nodes = [standard("ScatterND", "x places rows", "y")]
    check(nodes, inputs, {"y": np.float32}, ["ScatterND"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (standard("Gather", "x bad", "y", axis=1), r"trigraph.Gather: .*indices\[1\] is 9, outside \[0, 6\)"),
        (standard("Gather", "x bad", "y"), "trigraph.Gather: .*data has 2 dimensions, and attribute axis is 0"),
        (standard("ScatterND", "x places rows", "y"), r"trigraph.ScatterND: .*indices\[1\] is 3, outside \[0, 3\)"),
        (standard("Mul", "x table", "y"), "trigraph.Mul: .*b has 5 values, expected 1 or 18"),
        (
            standard("Reshape", "x bad", "y"),
            "trigraph.Reshape: .*data has 18 values, which input shape does not divide",
        ),
    ],
    ids=str,
)
def test_errors_of_operators_of_onnx(wrong: onnx.NodeProto, message: str) -> None:
    inputs = {
        "x": np.ones((3, 6), np.float32),
        "bad": np.array([0, 9]),
        "places": np.array([[0], [3]]),
        "rows": np.ones((2, 6), np.float32),
        "table": np.ones(5, np.float32),
    }
    model = model_of([wrong], {name: inputs[name] for name in wrong.input}, {"y": np.float32})
    fuse(model)
    with pytest.raises(Exception, match=message):
        run(session_of(model, "cuda"), {name: inputs[name] for name in wrong.input}, ["y"])
