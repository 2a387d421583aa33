"""One graph of a package's draft and verify graphs, for rounds with a fixed number of drafts: it draws them in between.

A chain of drafts and their draws, the verify of all tokens and the draws of its rows are one run then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from trigraph.custom_ops import DOMAIN

_DRAWING = ("filters", "numbers")
_ONE_ROW = "cu_seqlens@1"


def join(draft: ModelProto, verify: ModelProto, drafts: int) -> ModelProto:
    """The graph for one sequence.

    What belongs to a draft ends in "@" and its number. Inputs are those of the verify, with `token` [1] in place of
    `input_ids`; of the first draft; `past_lens` of the others; `filters` [3] and `numbers` [3] of the operator
    DrawTokens. Outputs are the verify's; `verified` [1 + drafts] and `drawn` [1 + drafts], the tokens of its rows and
    what these draw; and the head's KV after each draft, in the one buffer that it is read from.
    """
    graph, rows, known = GraphProto(name="joined"), 1 + drafts, "token"
    for number in range(drafts):
        _add_draft(graph, draft.graph, number)
        following = "verified" if number + 1 == drafts else f"verified@{number}"
        graph.node.append(_draw(f"logits@{number}", known, [f"drafted@{number}", following]))
        known = following
    _add(graph, verify.graph, lambda name: "verified" if name == "input_ids" else name)
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "T":  # of the verify; that of the inputs is the first draft's
                dim.dim_value = rows
    graph.node.append(_draw("logits", "", ["drawn"]))
    graph.input.append(_vector("token", TensorProto.INT64, 1))
    graph.input.append(_vector(_DRAWING[0], TensorProto.DOUBLE, 3))
    graph.input.append(_vector(_DRAWING[1], TensorProto.INT64, 3))
    graph.output.extend(_vector(name, TensorProto.INT64, rows) for name in ("verified", "drawn"))
    weights = {tensor.name: tensor for tensor in (*draft.graph.initializer, *verify.graph.initializer)}
    graph.initializer.extend(weights.values())
    graph.initializer.append(helper.make_tensor(_ONE_ROW, TensorProto.INT32, [2], [0, 1]))
    return helper.make_model(graph, opset_imports=verify.opset_import, ir_version=verify.ir_version)


def _add_draft(graph: GraphProto, draft: GraphProto, number: int) -> None:
    """Draft `number` of a chain, without what nobody asks for."""
    kept = {tensor.name for tensor in draft.initializer} | {"page_table", ""}
    before = {"input_ids": f"drafted@{number - 1}", "prev_hidden": f"hidden@{number - 1}", "cu_seqlens": _ONE_ROW}

    def renamed(name: str) -> str:
        if number and name in before:
            return before[name]
        return name if name in kept or name.startswith("past.") else f"{name}@{number}"

    needed = {value.name for value in draft.output if value.name.startswith("present.")} | {"logits", "hidden"}
    part = GraphProto(node=_making(draft.node, needed))
    part.input.extend(value for value in draft.input if not (number and value.name in before))
    part.output.extend(value for value in draft.output if value.name.startswith("present."))
    _add(graph, part, renamed)


def _add(graph: GraphProto, part: GraphProto, renamed: Callable[[str], str]) -> None:
    """Nodes, inputs and outputs of a part by their new names; inputs that the graph makes, or has, are none of it."""
    there = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    for node in part.node:
        copy = graph.node.add()
        copy.CopyFrom(node)
        copy.name = renamed(node.name)
        copy.input[:] = map(renamed, node.input)
        copy.output[:] = map(renamed, node.output)
    for values, parts in ((graph.input, part.input), (graph.output, part.output)):
        for value in parts:
            if renamed(value.name) not in there:
                values.add().CopyFrom(value)
                values[-1].name = renamed(value.name)


def _making(nodes: Iterable[NodeProto], wanted: set[str]) -> list[NodeProto]:
    """The nodes that make the wanted values."""
    found: list[NodeProto] = []
    for node in reversed([*nodes]):
        if wanted.intersection(node.output):
            found.append(node)
            wanted = wanted.union(node.input)
    return found[::-1]


def _draw(logits: str, before: str, outputs: list[str]) -> NodeProto:
    return helper.make_node("DrawTokens", [logits, *_DRAWING, before], outputs, f"draw {outputs[-1]}", domain=DOMAIN)


def _vector(name: str, dtype: int, size: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [size])
