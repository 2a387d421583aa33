"""What a step of a graph must read and multiply: the two terms of its roofline, counted from the graph itself."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

_ELEMENT_BYTES = {
    onnx.TensorProto.FLOAT: 4,
    onnx.TensorProto.FLOAT16: 2,
    onnx.TensorProto.BFLOAT16: 2,
    onnx.TensorProto.UINT8: 1,
    onnx.TensorProto.INT64: 8,
    onnx.TensorProto.INT32: 4,
}
_FLOAT_WEIGHTS = ("F32", "F16", "BF16")  # multiplied as float32 whatever the activations are


@dataclass(frozen=True)
class Cost:
    """Bytes that a step cannot avoid to read or write once, and its products by the kind of multiplication."""

    bytes: float = 0
    float32_products: float = 0
    int8_products: float = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.bytes + other.bytes,
            self.float32_products + other.float32_products,
            self.int8_products + other.int8_products,
        )


@dataclass(frozen=True)
class Step:
    """The shape of a step: tokens and sequences in all, positions that attention sees for each sequence, and how many
    distinct experts the tokens chose, by the name of the expert node."""

    tokens: int
    sequences: int
    context: int
    experts: Mapping[str, float]


class GraphCost:
    """Counts the cost of steps of one graph file; weights are not read."""

    def __init__(self, path: Path) -> None:
        graph = onnx.load(str(path), load_external_data=False).graph
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        values = [*graph.value_info, *graph.input, *graph.output]
        self._shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        self._types = {v.name: v.type.tensor_type.elem_type for v in values}
        self._nodes = [node for node in graph.node if node.op_type in self._COUNTERS]

    def expert_nodes(self) -> dict[str, str]:
        """The value that holds the chosen expert ids, for each expert node by name."""
        return {node.name: node.input[1] for node in self._nodes if node.op_type == "GroupedExpertFFN"}

    def of(self, step: Step) -> Cost:
        """The cost of one step."""
        return sum((self._COUNTERS[node.op_type](self, node, step) for node in self._nodes), Cost())

    def _matmul(self, node: onnx.NodeProto, step: Step) -> Cost:
        rows = self._rows(node.output[0], step)
        return self._products(node, "type", node.input[1], rows) + Cost(bytes=self._bytes(node.input[1]))

    def _gather(self, node: onnx.NodeProto, step: Step) -> Cost:
        table = self._weights[node.input[1]]
        return Cost(bytes=self._bytes(table.name) / table.dims[0] * self._rows(node.output[0], step))

    def _experts(self, node: onnx.NodeProto, step: Step) -> Cost:
        chosen = step.experts[node.name]
        pairs = self._rows(node.output[0], step) * int(self._shapes[node.input[1]][1])
        total = Cost()
        for kind, index in (("gate_type", 3), ("down_type", 4), ("up_type", 5)):
            if index < len(node.input) and node.input[index]:
                name = node.input[index]
                experts = self._weights[name].dims[0]
                total += Cost(bytes=self._bytes(name) * chosen / experts)
                total += self._products(node, kind, name, pairs / experts)
        return total

    def _gated_delta_net(self, node: onnx.NodeProto, step: Step) -> Cost:
        state = math.prod(int(d) for d in self._shapes[node.input[8]][1:])
        return Cost(bytes=2 * 4 * state * step.sequences, float32_products=3 * state * step.tokens)

    def _attention(self, node: onnx.NodeProto, step: Step) -> Cost:
        key = node.input[2]
        position = math.prod(int(d) for d in self._shapes[key][2:])
        read = 2 * position * _ELEMENT_BYTES[self._types[key]] * step.context * step.sequences
        width = int(self._shapes[node.output[0]][1])
        return Cost(bytes=read, float32_products=2 * width * step.context * self._rows(node.output[0], step))

    _COUNTERS: Mapping[str, Callable[["GraphCost", onnx.NodeProto, Step], Cost]] = {
        "BlockMatMul": _matmul,
        "BlockGather": _gather,
        "GroupedExpertFFN": _experts,
        "GatedDeltaNet": _gated_delta_net,
        "PagedAttention": _attention,
    }

    def _rows(self, value: str, step: Step) -> int:
        return step.tokens if self._shapes[value][0] == "T" else step.sequences

    def _bytes(self, name: str) -> int:
        weight = self._weights[name]
        return int(math.prod(weight.dims)) * _ELEMENT_BYTES[weight.data_type]

    def _products(self, node: onnx.NodeProto, kind: str, weight: str, rows: float) -> Cost:
        attributes = {a.name: a.s.decode() for a in node.attribute if a.type == onnx.AttributeProto.STRING}
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[attributes[kind]]]
        products = rows * self._bytes(weight) / block_bytes * block
        if attributes["activations"] == "int8" and attributes[kind] not in _FLOAT_WEIGHTS:
            return Cost(int8_products=products)
        return Cost(float32_products=products)
