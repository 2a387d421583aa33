"""The layers of the trunk: full attention, Gated DeltaNet, and the block around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import shape
from trigraph.exporter.graphs.ffn import feed_forward
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences


@dataclass(frozen=True)
class Recurrence:
    """The inputs of Gated DeltaNet beside the sequences, and whether a step's own tokens are committed at once."""

    accepted: ir.Value
    slots_in: ir.Value
    slots_out: ir.Value
    commit: bool


def block(net: Network, layer: int, x: ir.Value, sequences: Sequences, recurrence: Recurrence) -> ir.Value:
    """One trunk layer: x [T, hidden] plus mixer, plus feed-forward."""
    prefix = f"blk.{layer}"
    normed = net.norm(x, f"{prefix}.attn_norm.weight", f"{prefix}.attn_norm")
    if net.config.recurrent[layer]:
        mixed = gated_delta_net(net, layer, normed, sequences, recurrence)
    else:
        cache = kv_write(net, prefix, f"kv.{layer}", normed, sequences, f"{prefix}.attn")
        mixed = attention(net, prefix, normed, cache, sequences, f"{prefix}.attn")
    return feed_forward_residual(net, prefix, x, mixed, prefix)


def feed_forward_residual(net: Network, prefix: str, x: ir.Value, mixed: ir.Value, name: str) -> ir.Value:
    """The second half of a block: the mixer's residual, then the feed-forward layer's."""
    x = net.graph.node("Add", [x, mixed], f"{name}.attn_residual")
    normed = net.norm(x, f"{prefix}.post_attention_norm.weight", f"{name}.ffn_norm")
    return net.graph.node("Add", [x, feed_forward(net, prefix, normed, f"{name}.ffn")], f"{name}.ffn_residual")


def kv_write(
    net: Network, prefix: str, state: str, x: ir.Value, sequences: Sequences, name: str
) -> tuple[ir.Value, ir.Value]:
    """Project keys and values of normed rows x and write them into the pages of `state`; returns the pages."""
    config = net.config
    key = net.linear(x, f"{prefix}.attn_k.weight", f"{name}.k")
    value = net.linear(x, f"{prefix}.attn_v.weight", f"{name}.v")
    norm = net.vector(f"{prefix}.attn_k_norm.weight")
    past = [net.past(f"{state}.key"), net.past(f"{state}.value")]
    present = (net.present(f"{state}.key"), net.present(f"{state}.value"))
    net.graph.multi_node(
        "PagedKVWrite",
        [key, value, norm, *past, sequences.cu_seqlens, sequences.past_lens, sequences.page_table],
        f"{name}.kv_write",
        present,
        DOMAIN,
        rope_dims=config.rope_dims,
        rope_theta=config.rope_theta,
        eps=config.rms_eps,
    )
    return present


def attention(
    net: Network, prefix: str, x: ir.Value, cache: tuple[ir.Value, ir.Value], sequences: Sequences, name: str
) -> ir.Value:
    """Gated attention of normed rows x over written pages, projected back: [rows, hidden]."""
    config = net.config
    query = net.linear(x, f"{prefix}.attn_q.weight", f"{name}.q")
    norm = net.vector(f"{prefix}.attn_q_norm.weight")
    mixed = net.graph.node(
        "PagedAttention",
        [query, norm, *cache, sequences.cu_seqlens, sequences.past_lens, sequences.page_table],
        f"{name}.mix",
        [shape(query)[0], config.heads * config.head_dim],
        domain=DOMAIN,
        rope_dims=config.rope_dims,
        rope_theta=config.rope_theta,
        eps=config.rms_eps,
    )
    return net.linear(mixed, f"{prefix}.attn_output.weight", f"{name}.out")


def gated_delta_net(net: Network, layer: int, x: ir.Value, sequences: Sequences, recurrence: Recurrence) -> ir.Value:
    """Gated DeltaNet of normed rows x [T, hidden], projected back."""
    config, prefix, name = net.config, f"blk.{layer}", f"blk.{layer}.gdn"
    qkv = net.linear(x, f"{prefix}.attn_qkv.weight", f"{name}.qkv")
    z = net.linear(x, f"{prefix}.attn_gate.weight", f"{name}.z")
    alpha, beta = _decay_and_rate(net, prefix, x, name)
    weights = ("ssm_conv1d.weight", "ssm_dt.bias", "ssm_a", "ssm_norm.weight")
    state = [f"gdn.{layer}.{part}" for part in ("state", "window", "gates")]
    y = net.graph.value(f"{name}.mix", ir.DataType.FLOAT, [shape(x)[0], config.value_dim])
    net.graph.multi_node(
        "GatedDeltaNet",
        [
            *(qkv, z, alpha, beta),
            *(net.vector(f"{prefix}.{weight}") for weight in weights),
            *(net.past(part) for part in state),
            *(sequences.cu_seqlens, sequences.past_lens),
            *(recurrence.accepted, recurrence.slots_in, recurrence.slots_out),
        ],
        f"{name}.mix",
        [y, *(net.present(part) for part in state)],
        DOMAIN,
        k_heads=config.gdn_k_heads,
        eps=config.rms_eps,
        tiled=int(config.gdn_tiled),
        commit=int(recurrence.commit),
    )
    return net.linear(y, f"{prefix}.ssm_out.weight", f"{name}.out")


def _decay_and_rate(net: Network, prefix: str, x: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
    """The raw projections alpha and beta, [T, v heads] each."""
    config = net.config
    if not net.weights.has(f"{prefix}.ssm_ba.weight"):
        alpha = net.linear(x, f"{prefix}.ssm_alpha.weight", f"{name}.alpha")
        return alpha, net.linear(x, f"{prefix}.ssm_beta.weight", f"{name}.beta")
    # One matrix whose rows are, for each key head, its value heads' beta and then their alpha.
    both = net.linear(x, f"{prefix}.ssm_ba.weight", f"{name}.beta_alpha")
    columns = np.arange(2 * config.gdn_v_heads).reshape(config.gdn_k_heads, 2, -1)
    beta, alpha = (
        net.graph.node(
            "Gather",
            [both, net.graph.constant(f"{part}_columns", columns[:, index].reshape(-1), np.int64)],
            f"{name}.{part}",
            [shape(x)[0], config.gdn_v_heads],
            axis=1,
        )
        for index, part in enumerate(("beta", "alpha"))
    )
    return alpha, beta
