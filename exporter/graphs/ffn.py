"""The feed-forward layer: dense, or a mixture of experts beside a shared one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import INT64, shape
from trigraph.exporter.graphs.network import Network
from trigraph.models import names


def feed_forward(net: Network, layer: int, x: ir.Value, name: str) -> ir.Value:
    """The feed-forward layer of a block for normed rows x [rows, hidden]."""
    if not net.config.experts:
        return _gated_mlp(net, layer, x, (names.FFN_GATE, names.FFN_UP, names.FFN_DOWN), name)
    routed = _experts(net, layer, x, name)
    matrices = names.FFN_GATE_SHEXP, names.FFN_UP_SHEXP, names.FFN_DOWN_SHEXP
    shared = _gated_mlp(net, layer, x, matrices, f"{name}.shared")
    gate = net.linear(x, names.in_block(layer, names.FFN_GATE_INP_SHEXP), f"{name}.shared.weight_logit")
    gate = net.graph.node("Sigmoid", [gate], f"{name}.shared.weight")
    shared = net.graph.node("Mul", [shared, gate], f"{name}.shared.weighted")
    return net.graph.node("Add", [routed, shared], f"{name}.sum")


def _gated_mlp(net: Network, layer: int, x: ir.Value, matrices: tuple[str, str, str], name: str) -> ir.Value:
    """down(silu(gate x) * up x), with the names of the three matrices in that order: gate, up, down."""
    gate_weight, up_weight, down_weight = (names.in_block(layer, matrix) for matrix in matrices)
    gate, up = net.linear(x, gate_weight, f"{name}.gate"), net.linear(x, up_weight, f"{name}.up")
    sigmoid = net.graph.node("Sigmoid", [gate], f"{name}.sigmoid")
    silu = net.graph.node("Mul", [gate, sigmoid], f"{name}.silu")
    inner = net.graph.node("Mul", [silu, up], f"{name}.inner")
    return net.linear(inner, down_weight, f"{name}.down")


def _experts(net: Network, layer: int, x: ir.Value, name: str) -> ir.Value:
    weights, ids = _route(net, layer, x, f"{name}.router")
    fused = net.weights.has(names.in_block(layer, names.FFN_GATE_UP_EXPS))
    gate, gate_matrix = net.stack(names.in_block(layer, names.FFN_GATE_UP_EXPS if fused else names.FFN_GATE_EXPS))
    down, down_matrix = net.stack(names.in_block(layer, names.FFN_DOWN_EXPS))
    inputs, up_type = [x, ids, weights, gate, down], None
    if not fused:
        up, up_matrix = net.stack(names.in_block(layer, names.FFN_UP_EXPS))
        inputs.append(up)
        up_type = up_matrix.type
    return net.graph.node(
        "GroupedExpertFFN",
        inputs,
        f"{name}.experts",
        domain=DOMAIN,
        gate_type=gate_matrix.type,
        up_type=up_type,
        down_type=down_matrix.type,
        activations=net.activations,
    )


def _route(net: Network, layer: int, x: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
    """Weights float32 [rows, k] and ids int64 [rows, k] of each row's experts, the likeliest first.

    With p = softmax(logits), normalised weights are p_i / max(sum of the k largest p, 2^-14). The sum is at least
    k / experts, so the bound never holds and this is the softmax of the k largest logits. Summing over k columns would
    not do: ReduceSum on a CPU adds in an order that follows the alignment of the row, and so the rows before it.
    """
    config = net.config
    dims = [shape(x)[0], config.experts_used]
    scores = net.linear(x, names.in_block(layer, names.FFN_GATE_INP), f"{name}.logits")
    if not config.normalize_experts:
        scores = net.graph.node("Softmax", [scores], f"{name}.softmax", axis=-1)
    top = net.graph.value(f"{name}.top", ir.DataType.FLOAT, dims)
    ids = net.graph.value(f"{name}.ids", INT64, dims)
    count = net.graph.constant("experts_used", [config.experts_used], np.int64)
    net.graph.multi_node("TopK", [scores, count], f"{name}.top_k", [top, ids], axis=-1, largest=1, sorted=1)
    if config.normalize_experts:
        top = net.graph.node("Softmax", [top], f"{name}.weights", axis=-1)
    return top, ids
