"""Routed experts that a GPU shares with the CPU: what the graphs have of them, and the nodes that compute them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from trigraph.custom_ops import DOMAIN
from trigraph.models.names import NGRAM_TABLE
from trigraph.runtime.device.parts.layers import layer_count, layer_of, levels_of, looked_up, state_by_layer
from trigraph.runtime.device.parts.placement import GpuShare, first_slots
from trigraph.runtime.device.parts.weights import Block, ExpertLayer, Weights

CUDA_DOMAIN = "trigraph.cuda"
SPLIT = "SplitExperts"
_EXPERTS = "GroupedExpertFFN"
_STACKS = slice(3, 6)  # inputs of an expert node: gate, down, up or none
_INPUTS = 8


def weights_of(models: Mapping[str, ModelProto], state: Mapping[str, int] = MappingProxyType({})) -> Weights:
    """What the graphs of a package, by name, read; a table of n-grams stays in its file.

    `state`: bytes of state tensors by name.
    """
    sizes: dict[tuple[str, ...], int] = {}  # by place in a file: graphs share weights
    levels: dict[tuple[str, ...], int] = {}  # how many layers they leave a GPU with
    first: set[tuple[str, ...]] = set()  # of the first layer and what is ahead of it
    tables: set[tuple[str, ...]] = set()
    layers: dict[str, ExpertLayer] = {}
    for name, model in sorted(models.items(), key=lambda item: item[0] == "draft"):
        tensors = _external(model)
        routed = {stack for node in _expert_nodes(model) for stack in _stacks(node)}
        found, few = levels_of(model), looked_up(model)
        for tensor in tensors.values():
            if tensor.name not in routed and tensor.name != NGRAM_TABLE:
                place = tuple(entry.value for entry in tensor.external_data)
                sizes[place] = _bytes(tensor)
                least, most = found.get(tensor.name, (0, 0))
                levels[place] = max(levels.get(place, 0), most)
                first |= {place} if least == 1 else set()
                tables |= {place} if tensor.name in few else set()
        for node in _expert_nodes(model):
            gate = tensors[node.input[3]]
            layers[gate.name] = ExpertLayer(
                name=gate.name,
                experts=gate.dims[0],
                expert_bytes=sum(_bytes(tensors[stack]) for stack in _stacks(node)) // gate.dims[0],
                chosen=_chosen(model, node),
                head=name == "draft" and gate.name not in layers,
                block=layer_of(gate.name),
            )
    of_layer = state_by_layer(state)
    blocks = []
    for number in range(layer_count(models["verify"]) if "verify" in models else 0):
        own = [place for place, level in levels.items() if level == number + 1]
        read = sum(sizes[place] for place in own if place not in tables)
        blocks.append(Block(nbytes=sum(sizes[place] for place in own), read_bytes=read, state_bytes=of_layer[number]))
    return Weights(
        trunk_bytes=sum(sizes.values()),
        layers=tuple(layers.values()),
        blocks=tuple(blocks),
        state_bytes=sum(state.values()),
        shared_bytes=sum(sizes[place] for place in first if levels[place] > 1),
    )


def split(model: ModelProto, share: GpuShare, threads: int, places: Mapping[str, int]) -> None:
    """Has the CPU compute the experts that the GPU does not hold, on so many threads.

    `places`: by layer, the address of its table in the host's memory; with it, the weights of these experts may go to
    the GPU for a long step.
    """
    tensors = _external(model)
    nodes = [(node, share.slots[node.input[3]]) for node in _expert_nodes(model)]
    nodes = [(node, held) for node, held in nodes if held < tensors[node.input[3]].dims[0]]
    if nodes:
        model.opset_import.add(domain=CUDA_DOMAIN, version=1)
    for node, held in nodes:
        gate = node.input[3]
        table = numpy_helper.from_array(first_slots(tensors[gate].dims[0], held), _table(gate))
        parts = [_first(tensors[stack], held) for stack in _stacks(node)] if held else []
        model.graph.initializer.extend([table, *parts])
        node.op_type, node.domain = SPLIT, CUDA_DOMAIN
        node.input.extend([""] * (_INPUTS - len(node.input)) + [table.name, *(part.name for part in parts)])
        node.attribute.append(helper.make_attribute("threads", threads))
        node.attribute.append(helper.make_attribute("places", places.get(gate, 0)))
    for (node, _), name in zip(nodes[:1] + nodes[-1:], ("begins", "ends"), strict=False):
        node.attribute.append(helper.make_attribute(name, 1))


def pieces(graph: onnx.GraphProto, weights: Iterable[str], tables: set[str]) -> list[list[str]]:
    """The weights that the GPU holds, in pieces of memory: each layer's part of the experts on its own, all else.

    Not the stacks that nodes read in the host's memory, nor `tables`, which stay there too.
    """
    stay = tables | host_stacks(graph)
    parts = [[part for _, part in layer] for layer in held_stacks(graph).values()]
    apart = stay.union(*parts)
    return [[name for name in weights if name not in apart], *parts]


def host_stacks(graph: onnx.GraphProto) -> set[str]:
    """The stacks that the CPU reads in the host's memory, and the GPU now and then."""
    return {stack for node in graph.node if node.op_type == SPLIT for stack in _stacks(node)}


def tables(graph: onnx.GraphProto) -> dict[str, str]:
    """The layers of a graph whose experts lie on both sides, and the names of their tables."""
    return {node.input[3]: _table(node.input[3]) for node in graph.node if node.op_type == SPLIT}


def held_stacks(graph: onnx.GraphProto) -> dict[str, list[tuple[str, str]]]:
    """By layer, the names of the whole stacks and of their parts that the GPU holds, gates first; none for no slots."""
    return {
        node.input[3]: [(name, _part(name)) for name in _stacks(node)]
        for node in graph.node
        if node.op_type == SPLIT and len(node.input) > _INPUTS + 1
    }


def _table(gate: str) -> str:
    return f"{gate}.slots"


def _part(stack: str) -> str:
    return f"{stack}.held"


def _expert_nodes(model: ModelProto) -> Iterable[NodeProto]:
    return (node for node in model.graph.node if node.op_type == _EXPERTS and node.domain == DOMAIN)


def _stacks(node: NodeProto) -> Sequence[str]:
    return [name for name in node.input[_STACKS] if name]


def _external(model: ModelProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL}


def _bytes(tensor: TensorProto) -> int:
    size: int = math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return size


def _chosen(model: ModelProto, node: NodeProto) -> int:
    """Experts of a token."""
    maker = next((maker for maker in model.graph.node if node.input[1] in maker.output), None)
    given = (attribute.i for attribute in (maker.attribute if maker else ()) if attribute.name == "k")
    return next(given, 1)


def _first(stack: TensorProto, count: int) -> TensorProto:
    """The first matrices of a stack in a weight file, as a weight of its own."""
    part = TensorProto(name=_part(stack.name), data_type=stack.data_type, dims=[count, *stack.dims[1:]])
    part.data_location = TensorProto.EXTERNAL
    length = str(count * _bytes(stack) // stack.dims[0])
    for entry in stack.external_data:
        part.external_data.add(key=entry.key, value=length if entry.key == "length" else entry.value)
    return part
