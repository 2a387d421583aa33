"""The cost of running a graph, counted from its file: the sum of what its operators state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from trigraph.custom_ops import DOMAIN
from trigraph.custom_ops.cost import Cost, Node, Tensor, Workload
from trigraph.custom_ops.grouped_expert_ffn.operators import EXPERT_IDS
from trigraph.custom_ops.registry import operator


class GraphCost:
    """Counts the cost of runs of one graph file; weights are not read. Standard operators count as free."""

    def __init__(self, path: Path) -> None:
        """Raises TrigraphError for an operator of our domain that no family defines."""
        graph = onnx.load(str(path), load_external_data=False).graph
        tensors = {tensor.name: tensor for tensor in map(_weight, graph.initializer)}
        tensors |= {value.name: value for value in map(_value, (*graph.value_info, *graph.input, *graph.output))}
        nodes = [node for node in graph.node if node.domain == DOMAIN]
        self._nodes = [(operator(node.op_type), _node(node, tensors)) for node in nodes]

    def expert_nodes(self) -> dict[str, str]:
        """The value that holds the chosen expert ids, for each expert node by name."""
        experts = (node for kind, node in self._nodes if kind.name == "GroupedExpertFFN")
        return {node.name: node.given(EXPERT_IDS).name for node in experts}

    def of(self, work: Workload) -> Cost:
        """The cost of one run."""
        return sum((kind.cost(node, work) for kind, node in self._nodes), Cost())


def _node(node: onnx.NodeProto, tensors: dict[str, Tensor]) -> Node:
    attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return Node(
        node.name,
        [tensors[name] if name else None for name in node.input],
        [tensors[name] for name in node.output],
        {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()},
    )


def _weight(tensor: onnx.TensorProto) -> Tensor:
    return Tensor(tensor.name, tuple(tensor.dims), _element_bytes(tensor.data_type))


def _value(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.tensor_type
    dims = tuple(dim.dim_param or int(dim.dim_value) for dim in kind.shape.dim)
    return Tensor(value.name, dims, _element_bytes(kind.elem_type))


def _element_bytes(type: int) -> int:
    return np.dtype(helper.tensor_dtype_to_np_dtype(type)).itemsize
