"""The feed-forward layer: dense, or a mixture of experts beside a shared one."""

from __future__ import annotations

import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import FLOAT, INT64, shape
from trigraph.exporter.graphs.network import Network
from trigraph.models import names


def feed_forward(net: Network, layer: int, x: ir.Value, name: str) -> ir.Value:
    """The feed-forward layer of a block for normed rows x [rows, hidden]."""
    if net.config.experts:
        return _mixture_of_experts(net, layer, x, name)
    weights = {
        f"{name}.gate": names.in_block(layer, names.FFN_GATE),
        f"{name}.up": names.in_block(layer, names.FFN_UP),
    }
    gate, up = net.linears(x, f"{name}.gate_up", weights)
    return net.gated_linear(gate, up, names.in_block(layer, names.FFN_DOWN), f"{name}.down")


def _mixture_of_experts(net: Network, layer: int, x: ir.Value, name: str) -> ir.Value:
    """The routed experts of each row, and the shared expert times its gate."""
    weights = {
        f"{name}.router.logits": names.in_block(layer, names.FFN_GATE_INP),
        f"{name}.shared.weight_logit": names.in_block(layer, names.FFN_GATE_INP_SHEXP),
        f"{name}.shared.gate": names.in_block(layer, names.FFN_GATE_SHEXP),
        f"{name}.shared.up": names.in_block(layer, names.FFN_UP_SHEXP),
    }
    logits, shared_gate, gate, up = net.linears(x, f"{name}.projections", weights)
    shared = net.gated_linear(gate, up, names.in_block(layer, names.FFN_DOWN_SHEXP), f"{name}.shared.down")
    ids, factors = _route(net, logits, f"{name}.router")
    return _experts(net, layer, [x, ids, factors], [shared, shared_gate], name)


def _experts(net: Network, layer: int, tokens: list[ir.Value], shared: list[ir.Value], name: str) -> ir.Value:
    x, ids, factors = tokens
    for role in (names.FFN_UP_EXPS, names.FFN_DOWN_EXPS):  # a gate's factor lies before silu: its weights have it
        if scale := net.weights.factor(weight := names.in_block(layer, role)):
            each = net.graph.node("Gather", [net.vector(scale), ids], f"{weight}.factors", shape(ids), FLOAT)
            factors = net.graph.node("Mul", [factors, each], f"{weight}.weights")
    fused = net.weights.has(names.in_block(layer, names.FFN_GATE_UP_EXPS))
    gate, gate_matrix = net.stack(names.in_block(layer, names.FFN_GATE_UP_EXPS if fused else names.FFN_GATE_EXPS))
    down, down_matrix = net.stack(names.in_block(layer, names.FFN_DOWN_EXPS))
    up, up_type = None, None
    if not fused:
        up, up_matrix = net.stack(names.in_block(layer, names.FFN_UP_EXPS))
        up_type = up_matrix.type
    return net.graph.node(
        "GroupedExpertFFN",
        [x, ids, factors, gate, down, up, *shared],
        f"{name}.experts",
        domain=DOMAIN,
        gate_type=gate_matrix.type,
        up_type=up_type,
        down_type=down_matrix.type,
        activations=net.activations,
    )


def _route(net: Network, logits: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
    """Ids int64 [rows, k] and weights float32 [rows, k] of each row's experts, the likeliest first.

    With p = softmax(logits), normalised weights are p_i / max(sum of the k largest p, 2^-14). The sum is at least
    k / experts, so the bound never holds and this is the softmax of the k largest logits.
    """
    config = net.config
    dims = [shape(logits)[0], config.experts_used]
    ids, weights = net.graph.value(f"{name}.ids", INT64, dims), net.graph.value(f"{name}.weights", FLOAT, dims)
    net.graph.multi_node(
        "Router",
        [logits],
        name,
        [ids, weights],
        DOMAIN,
        k=config.experts_used,
        normalize=int(config.normalize_experts),
    )
    return ids, weights
