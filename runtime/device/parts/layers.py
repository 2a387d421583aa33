"""Graphs cut into parts of consecutive layers of the trunk, each for a device of its own."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, helper

_LAYER = re.compile(r"blk\.(\d+)\.")  # the names of its nodes and weights begin so
_STATE = re.compile(r"(?:gdn|kv|index|ngrams)\.(\d+)\b")
_NEVER = 1 << 30
_LOOKUP = "BlockGather"  # of which a step reads a few rows


def layer_of(weight: str) -> int | None:
    """The number of the layer that a weight, or a node of a graph, belongs to; None for those of no layer."""
    match = _LAYER.match(weight)
    return None if match is None else int(match[1])


def layer_count(model: ModelProto) -> int:
    """How many layers a trunk's graph has."""
    return 1 + max((number for node in model.graph.node if (number := layer_of(node.name)) is not None), default=-1)


def state_layer(tensor: str) -> int | None:
    """The number of the layer of the trunk that a state tensor belongs to; None for the MTP head's and a drafter's."""
    match = _STATE.match(tensor)
    return None if match is None else int(match[1])


def state_by_layer(sizes: Mapping[str, int]) -> Counter[int]:
    """Bytes of state tensors by the number of their layer of the trunk, from those by name."""
    found: Counter[int] = Counter()
    for name, nbytes in sizes.items():
        if (layer := state_layer(name)) is not None:
            found[layer] += nbytes
    return found


def cut(model: ModelProto, ends: Sequence[int]) -> list[ModelProto]:
    """The parts of a trunk's graph: the layers before each of `ends`, which rise, and behind the last one all else.

    The embedding is in the first part. What a part makes and later ones read, rows of tokens, is an output of the one
    and an input of the others, behind those of parts before.
    """
    nodes: list[list[NodeProto]] = [[] for _ in range(len(ends) + 1)]
    for node, level in zip(model.graph.node, _levels(model.graph), strict=True):
        nodes[bisect_left(ends, level)].append(node)
    parts = [_part(model, own) for own in nodes]
    ports = {value.name: value for value in model.graph.value_info}
    makers: dict[str, int] = {}
    for number, (part, own) in enumerate(zip(parts, nodes, strict=True)):
        rows = {name: makers[name] for node in own for name in node.input if name in makers}
        for name, maker in sorted(rows.items(), key=lambda row: row[1]):
            part.graph.input.append(ports[name])
            made = parts[maker].graph.output
            if not any(port.name == name for port in made):
                made.append(ports[name])
        makers |= {name: number for node in own for name in node.output if name}
    return parts


def levels_of(model: ModelProto) -> Mapping[str, tuple[int, int]]:
    """By weight of a graph, the least and the most first layers that a device must leave so that some node that reads
    it, or every one, is gone: above all layers' numbers for those that are always read."""
    found: dict[str, tuple[int, int]] = {}
    for node, level in zip(model.graph.node, _levels(model.graph), strict=True):
        for name in node.input:
            least, most = found.get(name, (level, level))
            found[name] = min(least, level), max(most, level)
    return {tensor.name: found[tensor.name] for tensor in model.graph.initializer if tensor.name in found}


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
