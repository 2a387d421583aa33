"""Several nodes of a graph as one, for the CUDA library: the same bits in fewer launches.

Packages keep the operators that every device has; these exist in the CUDA library alone (domain `trigraph.cuda`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from onnx import ModelProto, NodeProto, helper

from trigraph.custom_ops import DOMAIN

CUDA_DOMAIN = "trigraph.cuda"
_MOST_PRODUCTS = 4  # of a BlockMatMul


def fuse(model: ModelProto) -> None:
    """Replaces what stands beside each other in a model's graph."""
    _Fusion(model).run()


class _Fusion:
    """One graph, and who makes and reads each of its values."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._nodes = list(model.graph.node)
        self._makers = {name: node for node in self._nodes for name in node.output if name}
        self._readers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in self._nodes:
            for name in filter(None, node.input):
                self._readers[name].append(node)
        self._results = {value.name for value in model.graph.output}
        self._fused: dict[int, NodeProto | None] = {}
        """By the identity of a node what stands in its place."""

    def run(self) -> None:
        """All of it."""
        for before, node in zip([None, *self._nodes], self._nodes, strict=False):
            if node.domain != DOMAIN:
                continue
            if node.op_type == "BlockMatMul":
                self._norm_and_products(node)
            elif node.op_type == "GroupedExpertFFN":
                self._mixture_of_experts(node)
            elif node.op_type == "LastRows" and before is not None and before.op_type == "PagedKVWrite":
                self._entries_and_last_rows(before, node)
        nodes = [self._fused.get(id(node), node) for node in self._nodes]
        del self._model.graph.node[:]
        self._model.graph.node.extend(node for node in nodes if node is not None)
        self._model.opset_import.add(domain=CUDA_DOMAIN, version=1)

    def _norm_and_products(self, product: NodeProto) -> None:
        """RMSNorm or JoinedRMSNorm, its first BlockMatMul, and the Router of the latter's logits."""
        norm = self._makers.get(product.input[0])
        if norm is None or norm.op_type not in ("RMSNorm", "JoinedRMSNorm") or id(norm) in self._fused:
            return
        x, weight, *more = norm.input
        joined = norm.op_type == "JoinedRMSNorm"
        inputs = [x, weight, *(["", *more] if joined else [*more, "", "", ""][:3])]
        outputs = [norm.output[0], norm.output[1] if len(norm.output) > 1 else ""]
        outputs += [*product.output, *[""] * (_MOST_PRODUCTS - len(product.output))]
        attributes = _attributes(norm) | _attributes(product) | {"router": -1, "k": 0, "normalize": 0}
        for number, name in enumerate(product.output):
            for reader in self._readers[name]:
                if reader.op_type == "Router":
                    outputs += reader.output
                    attributes |= _attributes(reader) | {"router": number}
                    self._fused[id(reader)] = None
        self._fused[id(norm)] = _node("NormedBlockMatMul", norm, [*inputs, *product.input[1:]], outputs, attributes)
        self._fused[id(product)] = None

    def _mixture_of_experts(self, experts: NodeProto) -> None:
        """The experts that tokens choose, and the last product of the one that they share."""
        shared = self._makers.get(experts.input[6]) if len(experts.input) > 6 else None
        if shared is None or shared.op_type != "GatedBlockMatMul" or not self._read_once(shared.output[0]):
            return
        hidden, up, down = shared.input
        inputs = [*experts.input[:6], hidden, up, experts.input[7], down]
        attributes = _attributes(experts) | {"shared_down_type": _attributes(shared)["type"]}
        self._fused[id(experts)] = _node("MixtureOfExperts", experts, inputs, experts.output, attributes)
        self._fused[id(shared)] = None

    def _entries_and_last_rows(self, entries: NodeProto, last: NodeProto) -> None:
        """An attention's new entries, and the last rows of the same step."""
        if list(entries.input[5:7]) != list(last.input[:2]):
            return
        inputs, outputs = [*entries.input, *last.input[2:]], [*entries.output, *last.output]
        self._fused[id(last)] = _node("PagedKVWriteLastRows", entries, inputs, outputs, _attributes(entries))
        self._fused[id(entries)] = None

    def _read_once(self, name: str) -> bool:
        return len(self._readers[name]) == 1 and name not in self._results


def _node(
    op_type: str, first: NodeProto, inputs: Sequence[str], outputs: Sequence[str], attributes: dict[str, Any]
) -> NodeProto:
    while not outputs[-1]:
        outputs = outputs[:-1]
    return helper.make_node(op_type, inputs, outputs, first.name, domain=CUDA_DOMAIN, **attributes)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
