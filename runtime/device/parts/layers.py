"""Graphs cut at a layer: the first layers of the trunk for the CPU, all else for a GPU that does not hold them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

_LAYER = re.compile(r"blk\.(\d+)\.")  # the names of its nodes and weights begin so
_STATE = re.compile(r"(?:gdn|kv)\.(\d+)\.")
_NEVER = 1 << 30
_LOOKUP = "BlockGather"  # of which a step reads a few rows


def layer_of(weight: str) -> int | None:
    """The number of the layer that a weight, or a node of a graph, belongs to; None for those of no layer."""
    match = _LAYER.match(weight)
    return None if match is None else int(match[1])


def layer_count(model: ModelProto) -> int:
    """How many layers a trunk's graph has that may be cut off: none where rows of residual streams would cross."""
    if any(node.op_type == "StreamMean" for node in model.graph.node):
        return 0
    return 1 + max((number for node in model.graph.node if (number := layer_of(node.name)) is not None), default=-1)


def state_by_layer(sizes: Mapping[str, int]) -> Counter[int]:
    """Bytes of state tensors by the number of their layer of the trunk, from those by name; without the MTP head's."""
    found: Counter[int] = Counter()
    for name, nbytes in sizes.items():
        if part := _STATE.match(name):
            found[int(part[1])] += nbytes
    return found


def state_of_layers(names: Iterable[str], layers: int) -> frozenset[str]:
    """The names of the first layers' state tensors."""
    return frozenset(name for name in names if (part := _STATE.match(name)) and int(part[1]) < layers)


def cut(model: ModelProto, layers: int, hidden: int) -> tuple[ModelProto, ModelProto]:
    """The part of a trunk's graph with so many layers, the first ones, and the part that goes on from its rows.

    The embedding is in the first part. What the second one takes over, float32 [T, hidden], is an output of the first
    and an input of the second.
    """
    levels = list(zip(model.graph.node, _levels(model.graph), strict=True))
    below = [node for node, level in levels if level <= layers]
    above = [node for node, level in levels if level > layers]
    read = {name for node in above for name in node.input}
    rows = [name for node in below for name in node.output if name in read]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["T", hidden]) for name in rows]
    first, second = _part(model, below), _part(model, above)
    first.graph.output.extend(ports)
    second.graph.input.extend(ports)
    return first, second


def leaving(model: ModelProto) -> Mapping[str, int]:
    """By weight of a graph, how many first layers must leave a device before nothing there reads it: above all layers'
    numbers for those that are always read."""
    leaving_at: dict[str, int] = {}
    for node, level in zip(model.graph.node, _levels(model.graph), strict=True):
        for name in node.input:
            leaving_at[name] = max(leaving_at.get(name, 0), level)
    return {tensor.name: leaving_at[tensor.name] for tensor in model.graph.initializer if tensor.name in leaving_at}


def looked_up(model: ModelProto) -> set[str]:
    """The weights of which a step reads a few rows."""
    tables = {node.input[1] for node in model.graph.node if node.op_type == _LOOKUP}
    return tables - {name for node in model.graph.node if node.op_type != _LOOKUP for name in node.input}


def _levels(graph: GraphProto) -> list[int]:
    """By node, the least number of first layers that it leaves with: one of a layer with that, one that none of a layer
    reads never, and any other one with the first that reads what it makes."""
    least: dict[str, int] = {}  # by value
    levels: list[int] = []
    for node in reversed(graph.node):  # readers come before what they read
        layer = layer_of(node.name)
        level = min((least.get(name, _NEVER) for name in node.output), default=_NEVER) if layer is None else layer + 1
        levels.append(level)
        for name in node.input:
            least[name] = min(least.get(name, _NEVER), level)
    return levels[::-1]


def _part(model: ModelProto, nodes: Sequence[NodeProto]) -> ModelProto:
    """A model of some of a model's nodes, with the inputs, results and weights of these."""
    read = {name for node in nodes for name in node.input}
    made = {name for node in nodes for name in node.output}
    graph = helper.make_graph(
        nodes,
        model.graph.name,
        [port for port in model.graph.input if port.name in read],
        [port for port in model.graph.output if port.name in made],
        [tensor for tensor in model.graph.initializer if tensor.name in read],
        value_info=[value for value in model.graph.value_info if value.name in made],
    )
    part = ModelProto()
    part.CopyFrom(model)
    part.graph.CopyFrom(graph)
    return part
