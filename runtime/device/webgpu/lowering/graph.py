"""A graph of a package in operators that the plugin has: the contract stays, and so do the nodes that the CPU runs.

The CPU looks up embeddings, chooses and computes routed experts, and picks the likeliest tokens, with our operators and
from the mapped files. It also keeps and reads the keys and values that are not float16, or all where the GPU has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from onnx import ModelProto, NodeProto, helper

from trigraph.custom_ops import DOMAIN
from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.device.webgpu.lowering.attention import Attention
from trigraph.runtime.device.webgpu.lowering.builder import MICROSOFT, Builder, Weight
from trigraph.runtime.device.webgpu.lowering.gated_delta_net import GatedDeltaNet, Recurrence
from trigraph.runtime.device.webgpu.lowering.products import block_matmul, gated_block_matmul
from trigraph.runtime.device.webgpu.lowering.rows import Rows, starts_and_ends

ON_CPU = ("BlockGather", "Router", "GroupedExpertFFN", "TopToken")
_RESULTS = ("logits", "hidden")  # outputs with rows of a step


def lower(model: ModelProto, positions: int, *, has_half: bool = True) -> Mapping[str, Weight]:
    """Changes a model's graph; what it takes as inputs in place of stored tensors.

    In packages with images it is for text: positions are those of the sequences, and rows of images come nowhere.
    `positions`: how many a text has at most. `has_half`: whether the GPU has float16. Raises TrigraphError for what the
    plugin cannot run.
    """
    lowering = _Lowering(model, positions, has_half)
    for node in model.graph.node:
        lowering.node(node)
    lowering.builder.replace(model)
    return lowering.builder.weights


class _Lowering:
    """One graph."""

    def __init__(self, model: ModelProto, positions: int, has_half: bool) -> None:
        self.builder = b = Builder(model)
        if "patches" in b.inputs:
            raise TrigraphError("webgpu does not read images yet; use device=cpu")
        self._padded = "accepted" in b.inputs  # a draft may have any bits
        self._steps, self._last = (Rows(b, counted, padded=self._padded) for counted in ("input_ids", "past_lens"))
        self._attention = Attention(b, list(model.graph.node), self._steps, positions, has_half=has_half)
        self._results = self._last if "prev_hidden" in b.inputs else self._steps
        self._lowered: Mapping[str, Callable[[list[str], list[str], dict[str, Any]], None]] = {
            "RMSNorm": self._rms_norm,
            "JoinedRMSNorm": self._joined_rms_norm,
            "BlockMatMul": partial(block_matmul, b),
            "GatedBlockMatMul": partial(gated_block_matmul, b),
            "GatedDeltaNet": self._gated_delta_net,
            "PagedKVWrite": self._attention.write,
            "PagedAttention": self._attend,
            "LastRows": self._last_of_each,
            "PreviousRows": self._previous_rows,
        }
        self._all_rows: dict[str, str] = {}  # by a sequence's last rows, those of all tokens

    def node(self, node: NodeProto) -> None:
        """Adds what replaces a node."""
        inputs, outputs = [*map(self._inside, node.input)], [*map(self._inside, node.output)]
        if node.op_type == "TopToken":
            inputs = [*node.input]
        if "image_rows" in inputs:
            self.builder.op("Identity", inputs[0], out=outputs[0])
        elif not node.domain or node.op_type in ON_CPU:
            self._keep(node, inputs, outputs)
        elif (lowered := self._lowered.get(node.op_type)) is not None:
            lowered(inputs, outputs, _attributes(node))
        else:
            raise TrigraphError(f"webgpu has no counterpart of {quote(node.op_type)} yet; use device=cpu")
        for name, inside in zip(node.output, outputs, strict=True):
            if name != inside:
                self._results.cut(inside, out=name)

    def _inside(self, name: str) -> str:
        """What nodes call a value: results still have all rows of their padding."""
        return f"{name}.padded" if self._padded and name in _RESULTS else name

    def _keep(self, node: NodeProto, inputs: list[str], outputs: list[str]) -> None:
        kept = NodeProto()
        kept.CopyFrom(node)
        if node.op_type == "BlockGather" and inputs[0] == "input_ids":
            inputs[0] = self._steps.pad(inputs[0])
        for field, names in ((kept.input, inputs), (kept.output, outputs)):
            field[:] = names
        self.builder.nodes.append(kept)

    def _rms_norm(self, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
        b, (x, weight, *residual) = self.builder, inputs
        if not residual:
            b.op("RMSNormalization", x, b.vector(weight), out=outputs[0], axis=-1, epsilon=attributes["eps"])
            return
        made = [outputs[0], "", "", *outputs[1:]] if len(outputs) > 1 else outputs
        given = x, residual[0], b.vector(weight)
        b.ops("SkipSimplifiedLayerNormalization", *given, outs=made, domain=MICROSOFT, epsilon=attributes["eps"])

    def _joined_rms_norm(self, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
        sides = [self.builder.name(), self.builder.name()]
        for pair, side in zip((inputs[:2], inputs[2:]), sides, strict=True):
            self._rms_norm(pair, [side], attributes)
        self.builder.op("Concat", *sides, out=outputs[0], axis=1)

    def _gated_delta_net(self, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
        b = self.builder
        pending = b.inputs[inputs[10]].type.tensor_type.shape.dim[1].dim_value
        recurrence = b.once("recurrence", lambda: Recurrence(b, self._steps, pending))
        GatedDeltaNet(b, recurrence, inputs, attributes).lower(outputs)

    def _attend(self, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
        rows = self._all_rows.get(inputs[0])
        last = None if rows is None else self._last_rows()
        self._attention.attend([rows or inputs[0], *inputs[1:]], outputs, attributes, last)

    def _last_rows(self) -> str:
        """Which row is each sequence's last one."""
        b = self.builder
        return str(b.once("last", lambda: self._last.pad(b.op("Sub", starts_and_ends(b)[1], b.ints(1)))))

    def _last_of_each(self, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
        for rows, last in zip(inputs[2:], outputs[2:], strict=True):
            self._all_rows[last] = rows
            self.builder.op("Gather", rows, self._last_rows(), out=last)

    def _previous_rows(self, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
        """The CPU moves the rows of a prompt by one."""
        b, steps = self.builder, self._steps
        shifted = b.op("PreviousRows", steps.cut(inputs[0]), *inputs[1:], domain=DOMAIN)
        steps.pad(shifted, out=outputs[0])


def _attributes(node: NodeProto) -> dict[str, Any]:
    """But for the axes of an image's positions: a text has one position on all."""
    attributes = (attribute for attribute in node.attribute if attribute.name != "rope_sections")
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in attributes}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
