"""One graph of a package's draft and verify graphs, for a round with one draft: it draws the draft in between.

A draft, its draw, the verify of both tokens and the draws of its rows are one run then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from trigraph.custom_ops import DOMAIN

ROWS = 2
"""Of the verify: the next token, and the draft."""
_DRAWING = ("filters", "numbers")


def join(draft: ModelProto, verify: ModelProto) -> ModelProto:
    """The graph for one sequence.

    Its inputs are those of both; the draft's own ones begin with "draft.", and `token` [1], which is verified before
    the draft, stands for the verify's `input_ids`. `filters` [3] and `numbers` [3] are those of the operator
    DrawTokens. Its outputs are the verify's, and `drafted` [1] and `drawn` [2]: the draft, and what the rows draw.
    """
    state = {value.name for value in (*draft.graph.input, *draft.graph.output) if "." in value.name}
    ports = {value.name for value in (*draft.graph.input, *draft.graph.output)} - state - {"page_table"}
    guess = _renamed(draft.graph, {name: f"draft.{name}" for name in ports})
    graph = GraphProto(name="joined")
    graph.node.extend(_needed(guess.node, {"draft.logits", *state}))
    graph.node.append(_draw("draft.logits", "token", ["drafted", "input_ids"]))
    graph.node.extend(verify.graph.node)
    graph.node.append(_draw("logits", "", ["drawn"]))
    inputs = {value.name: value for value in (*guess.input, *verify.graph.input) if value.name != "input_ids"}
    graph.input.extend(inputs.values())
    graph.input.append(_vector("token", TensorProto.INT64, 1))
    graph.input.append(_vector(_DRAWING[0], TensorProto.DOUBLE, 3))
    graph.input.append(_vector(_DRAWING[1], TensorProto.INT64, 3))
    graph.output.extend(value for value in guess.output if value.name in state)
    graph.output.extend(map(_of_rows, verify.graph.output))
    graph.output.append(_vector("drafted", TensorProto.INT64, 1))
    graph.output.append(_vector("drawn", TensorProto.INT64, ROWS))
    weights = {tensor.name: tensor for tensor in (*guess.initializer, *verify.graph.initializer)}
    graph.initializer.extend(weights.values())
    return helper.make_model(graph, opset_imports=verify.opset_import, ir_version=verify.ir_version)


def _renamed(graph: GraphProto, names: Mapping[str, str]) -> GraphProto:
    """A copy of the graph with other names for some values."""
    copy = GraphProto()
    copy.CopyFrom(graph)
    for value in (*copy.input, *copy.output):
        value.name = names.get(value.name, value.name)
    for node in copy.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return copy


def _needed(nodes: Iterable[NodeProto], wanted: set[str]) -> list[NodeProto]:
    """The nodes that make the wanted values."""
    found: list[NodeProto] = []
    for node in reversed([*nodes]):
        if wanted.intersection(node.output):
            found.insert(0, node)
            wanted = wanted.union(node.input)
    return found


def _draw(logits: str, before: str, outputs: list[str]) -> NodeProto:
    return helper.make_node("DrawTokens", [logits, *_DRAWING, before], outputs, f"draw.{outputs[0]}", domain=DOMAIN)


def _vector(name: str, dtype: int, size: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [size])


def _of_rows(value: ValueInfoProto) -> ValueInfoProto:
    """An output of the verify, whose tokens are as many as there are rows, and not the draft's."""
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    for dim in copy.type.tensor_type.shape.dim:
        if dim.dim_param == "T":
            dim.dim_value = ROWS
    return copy
