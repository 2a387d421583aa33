"""Several nodes of a graph as one, for the CUDA library, and rows that are quantised once: the same bits, faster.

Packages keep the operators that every device has; these exist in the CUDA library alone (domain `trigraph.cuda`), which
has those of ONNX itself, too: so no step needs a kernel of ONNX Runtime's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from onnx import ModelProto, NodeProto, helper

from trigraph.custom_ops import DOMAIN
from trigraph.models.tensor_types import FLOAT_TYPES
from trigraph.runtime.device.parts.experts import CUDA_DOMAIN

_MOST_JOINED = 8  # inputs of a JoinColumns
_STANDARD = ("Reshape", "Gather", "ScatterND", "Mul", "Div", "Tanh")
"""ONNX's operators that the library has, as far as graphs need them."""
_OPTIONAL = {"RMSNorm": (1,), "PreparedRMSNorm": (1,), "NormedBlockMatMul": (0, 1, 2)}
"""Outputs that a node need not have."""

_STEP_INPUTS = {"PagedAttention": slice(4, 8), "PagedKVWrite": slice(5, 9)}
"""Where lengths, pages and positions are among a node's inputs."""


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
        self._given = {"", *(value.name for value in model.graph.input)}
        self._fused: dict[int, NodeProto | None] = {}
        """By the identity of a node what stands in its place."""

    def run(self) -> None:
        """All of it."""
        for before, node in zip([None, *self._nodes], self._nodes, strict=False):
            if node.op_type == "Concat":
                self._join(node)
            if node.op_type in _STANDARD:
                self._fused[id(node)] = _node(node.op_type, node, node.input, node.output, _attributes(node))
            if node.domain != DOMAIN:
                continue
            if node.op_type == "GroupedExpertFFN":
                self._mixture_of_experts(node)
            elif node.op_type in _STEP_INPUTS:
                self._tell_given(node)
            elif node.op_type == "LastRows" and before is not None and before.op_type == "PagedKVWrite":
                self._entries_and_last_rows(before, node)
        for node in self._nodes:
            if node.domain == DOMAIN and node.op_type in ("RMSNorm", "JoinedRMSNorm"):
                self._norm(node)
        nodes = [self._fused.get(id(node), node) for node in self._nodes]
        del self._model.graph.node[:]
        self._model.graph.node.extend(node for node in nodes if node is not None)
        self._drop_unread()
        if not any(opset.domain == CUDA_DOMAIN for opset in self._model.opset_import):
            self._model.opset_import.add(domain=CUDA_DOMAIN, version=1)

    def _norm(self, norm: NodeProto) -> None:
        """RMSNorm or JoinedRMSNorm makes rows of int8 too, for the nodes that meet them with quantised weights.

        The first of these that makes products of nothing else becomes one node with it.
        """
        rows = norm.output[0]
        prepared = f"{rows}.prepared"
        readers = [node for node in self._readers[rows] if self._takes_prepared(node) and node.input[0] == rows]
        if not readers:
            return
        x, weight, *more = norm.input
        inputs = [x, weight, "", *more] if norm.op_type == "JoinedRMSNorm" else list(norm.input)
        outputs, attributes = [*[*norm.output, ""][:2], prepared], _attributes(norm)
        products: list[NodeProto] = []
        for reader in readers:
            if mixture := self._fused.get(id(reader)):
                mixture.input.append(prepared)
            else:
                products.append(reader)
        for product in products[1:]:
            taken = [rows, prepared, *product.input[1:]]
            self._fused[id(product)] = _node(
                "PreparedBlockMatMul", product, taken, product.output, _attributes(product)
            )
        if not products:
            self._fused[id(norm)] = _node("PreparedRMSNorm", norm, inputs, outputs, attributes)
            return
        first = products[0]
        inputs = [*[*inputs, "", "", ""][:5], *first.input[1:]]
        self._fused[id(norm)] = _node(
            "NormedBlockMatMul", norm, inputs, [*outputs, *first.output], attributes | _attributes(first)
        )
        self._fused[id(first)] = None

    def _takes_prepared(self, node: NodeProto) -> bool:
        """Whether a node has weights that meet its first input as int8, and can take it so."""
        experts = node.op_type == "GroupedExpertFFN" and id(node) in self._fused
        if node.domain != DOMAIN or not (experts or node.op_type == "BlockMatMul"):
            return False
        attributes = _attributes(node)
        types = attributes["gate_type" if experts else "types"].decode().split(",")
        return attributes.get("activations") == b"int8" and not set(types) <= set(FLOAT_TYPES)

    def _mixture_of_experts(self, experts: NodeProto) -> None:
        """The experts that tokens choose, the last product of the one that they share, and the choice itself."""
        shared = self._makers.get(experts.input[6]) if len(experts.input) > 6 else None
        if shared is None or shared.op_type != "GatedBlockMatMul" or not self._read_once(shared.output[0]):
            return
        hidden, up, down = shared.input
        attributes = _attributes(experts) | {"shared_down_type": _attributes(shared)["type"]}
        x, ids, weights, *matrices = experts.input[:6]
        router, logits = self._makers.get(ids), ""
        if router and router.op_type == "Router" and [ids, weights] == [*filter(self._read_once, router.output)]:
            (logits,), ids, weights = router.input, "", ""
            attributes |= _attributes(router)
            self._fused[id(router)] = None
        inputs = [x, ids, weights, *matrices, hidden, up, experts.input[7], down, logits]
        self._fused[id(experts)] = _node("MixtureOfExperts", experts, inputs, experts.output, attributes)
        self._fused[id(shared)] = None

    def _tell_given(self, node: NodeProto) -> None:
        """Lengths and pages that no node makes may be read before the launch ahead is done."""
        if self._given.issuperset(node.input[_STEP_INPUTS[node.op_type]]):
            node.attribute.append(helper.make_attribute("given", 1))

    def _entries_and_last_rows(self, entries: NodeProto, last: NodeProto) -> None:
        """An attention's new entries, and the last rows of the same step."""
        if list(entries.input[5:7]) != list(last.input[:2]):
            return
        inputs = [*[*entries.input, ""][:9], *last.input[2:]]  # `positions` may be absent
        outputs = [*entries.output, *last.output]
        self._fused[id(last)] = _node("PagedKVWriteLastRows", entries, inputs, outputs, _attributes(entries))
        self._fused[id(entries)] = None

    def _join(self, concat: NodeProto) -> None:
        """Rows of float32 side by side: graphs concatenate nothing else."""
        if _attributes(concat)["axis"] == 1 and len(concat.input) <= _MOST_JOINED:
            self._fused[id(concat)] = _node("JoinColumns", concat, concat.input, concat.output, {})

    def _drop_unread(self) -> None:
        """ONNX Runtime would keep an output that no node reads until the step ends."""
        read = self._results.union(*(node.input for node in self._model.graph.node))
        for node in self._model.graph.node:
            for i in _OPTIONAL.get(node.op_type, ()):
                if i < len(node.output) and node.output[i] not in read:
                    node.output[i] = ""

    def _read_once(self, name: str) -> bool:
        return len(self._readers[name]) == 1 and name not in self._results


def _node(
    op_type: str, first: NodeProto, inputs: Sequence[str], outputs: Sequence[str], attributes: dict[str, Any]
) -> NodeProto:
    return helper.make_node(op_type, inputs, outputs, first.name, domain=CUDA_DOMAIN, **attributes)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
