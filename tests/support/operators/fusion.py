"""A part of a graph as the CUDA library runs it, and as the portable kernels do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from support.operators.row_bits import portable_kernels
from support.operators.run import ONNX_TYPE, device, provider, same_bits
from trigraph.custom_ops import DOMAIN
from trigraph.runtime.device.cuda.fusion import fuse

Arrays = Mapping[str, Any]


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node of our domain; `-` is an absent input or output."""
    taken, made = (["" if name == "-" else name for name in names.split()] for names in (inputs, outputs))
    return helper.make_node(op_type, taken, made, domain=DOMAIN, **attributes)


def model_of(nodes: Sequence[onnx.NodeProto], inputs: Arrays, outputs: Mapping[str, type]) -> onnx.ModelProto:
    """A model of some nodes, whose weights are inputs too."""
    taken = [helper.make_tensor_value_info(name, ONNX_TYPE[x.dtype], [None] * x.ndim) for name, x in inputs.items()]
    made = [helper.make_tensor_value_info(name, ONNX_TYPE[np.dtype(t)], None) for name, t in outputs.items()]
    graph = helper.make_graph(nodes, "part", taken, made)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def session_of(model: onnx.ModelProto, library: str) -> ort.InferenceSession:
    """A session with that library's kernels."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(device(library).path))
    return ort.InferenceSession(model.SerializeToString(), options, providers=[provider(library)])


def run(session: ort.InferenceSession, inputs: Arrays, outputs: Iterable[str]) -> list[Any]:
    """One run, and what kernels then report."""
    result = list(session.run(list(outputs), dict(inputs)))
    device("cuda").raise_device_error()
    return result


def check(
    nodes: Sequence[onnx.NodeProto], inputs: Arrays, outputs: Mapping[str, type], fused: Sequence[str]
) -> list[Any]:
    """The fused model is made of the operators `fused`, and has the bits of the portable kernels."""
    model = model_of(nodes, inputs, outputs)
    with portable_kernels():
        expected = run(session_of(model, "cpu"), inputs, outputs)
    fuse(model)
    assert [node.op_type for node in model.graph.node] == list(fused)
    session = session_of(model, "cuda")
    for _ in range(2):  # the second run finds counters as the first one left them
        found = run(session, inputs, outputs)
        for name, one, other in zip(outputs, found, expected, strict=True):
            assert same_bits(one, other), name
    return found
