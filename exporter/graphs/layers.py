"""The layers of the trunk: full attention, Gated DeltaNet, and the block around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import INT32, shape
from trigraph.exporter.graphs.ffn import feed_forward
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences
from trigraph.models import names
from trigraph.models.streams import Indexer


@dataclass(frozen=True)
class Recurrence:
    """The inputs of Gated DeltaNet beside the sequences, and whether a step's own tokens are committed at once."""

    accepted: ir.Value
    slots_in: ir.Value
    slots_out: ir.Value
    commit: bool


def block(
    net: Network, layer: int, x: ir.Value, addend: ir.Value | None, sequences: Sequences, recurrence: Recurrence
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """One trunk layer: x + addend [T, hidden] plus mixer, plus feed-forward.

    Returns the sum as it enters, the sum so far, and what is still to be added to it, which the next norm does in one
    node.
    """
    name = f"blk.{layer}"
    normed, entering = net.norm(x, names.in_block(layer, names.ATTN_NORM), f"{name}.attn_norm", addend)
    mixed = mixer(net, layer, normed, sequences, recurrence)
    return entering, *feed_forward_residual(net, layer, entering, mixed, name)


def mixer(net: Network, layer: int, x: ir.Value, sequences: Sequences, recurrence: Recurrence) -> ir.Value:
    """Gated DeltaNet or attention of normed rows x [T, hidden], projected back."""
    if net.config.recurrent[layer]:
        return gated_delta_net(net, layer, x, sequences, recurrence)
    name = f"blk.{layer}.attn"
    query, key, value = net.linears(x, f"{name}.qkv", qkv_weights(layer, name))
    cache = kv_write(net, layer, f"kv.{layer}", key, value, sequences, name)
    groups = None
    if net.config.streams is not None:
        queries, index = write_index(net, net.config.streams.indexer, layer, f"index.{layer}", x, sequences, name)
        groups = select(net, net.config.streams.indexer, layer, queries, index, sequences, name)
    return attention(net, layer, query, cache, sequences, name, groups)


def feed_forward_residual(
    net: Network, layer: int, x: ir.Value, mixed: ir.Value, name: str
) -> tuple[ir.Value, ir.Value]:
    """The second half of a block: the mixer's residual, then the feed-forward layer's, which is left to be added."""
    normed, x = net.norm(x, names.in_block(layer, names.POST_ATTENTION_NORM), f"{name}.ffn_norm", mixed)
    return x, feed_forward(net, layer, normed, f"{name}.ffn")


def kv_weights(layer: int, name: str) -> dict[str, str]:
    """The projections to keys and values, by the names of their results."""
    return {f"{name}.k": names.in_block(layer, names.ATTN_K), f"{name}.v": names.in_block(layer, names.ATTN_V)}


def qkv_weights(layer: int, name: str) -> dict[str, str]:
    """The projections to queries with their gates, keys and values."""
    return {f"{name}.q": names.in_block(layer, names.ATTN_Q)} | kv_weights(layer, name)


def kv_write(
    net: Network, layer: int, state: str, key: ir.Value, value: ir.Value, sequences: Sequences, name: str
) -> tuple[ir.Value, ir.Value]:
    """Write projected keys and values [rows, kv heads * head dim] into the pages of `state`; returns the pages."""
    norm = net.vector(names.in_block(layer, names.ATTN_K_NORM))
    past = [net.past(f"{state}.key"), net.past(f"{state}.value")]
    present = (net.present(f"{state}.key"), net.present(f"{state}.value"))
    net.graph.multi_node(
        "PagedKVWrite",
        [key, value, norm, *past, *_places(sequences)],
        f"{name}.kv_write",
        present,
        DOMAIN,
        **_cache_attributes(net, past[0]),
    )
    return present


def _places(sequences: Sequences) -> list[ir.Value]:
    """Inputs of the operators on a cache that say where rows belong; positions only where there may be images."""
    placed = [sequences.cu_seqlens, sequences.past_lens, sequences.page_table]
    return placed if sequences.positions is None else [*placed, sequences.positions]


def _cache_attributes(net: Network, cache: ir.Value) -> dict[str, Any]:
    """Attributes of the operators on a cache; one of bytes says what blocks they are."""
    config = net.config
    attributes: dict[str, Any] = {"type": "Q8_0"} if cache.dtype == ir.DataType.UINT8 else {}
    if net.sections is not None:
        attributes["rope_sections"] = net.sections
    if (scaling := config.rope_scaling) is not None:
        start, end = scaling.ramp(config.rope_dims, config.rope_theta)
        attributes |= {"rope_factor": scaling.factor, "rope_ramp_start": start, "rope_ramp_end": end}
        attributes |= {"rope_magnitude": scaling.magnitude}
    return attributes | {"rope_dims": config.rope_dims, "rope_theta": config.rope_theta, "eps": config.rms_eps}


def attention(
    net: Network,
    layer: int,
    query: ir.Value,
    cache: tuple[ir.Value, ir.Value],
    sequences: Sequences,
    name: str,
    groups: ir.Value | None = None,
    sight: Mapping[str, int] = MappingProxyType({}),
) -> ir.Value:
    """Attention of projected queries over written pages, projected back: [rows, hidden].

    Gated and causal, unless `sight`, attributes of the operator, says otherwise. `groups` of positions limit what rows
    see, as `select` makes them.
    """
    config = net.config
    norm = net.vector(names.in_block(layer, names.ATTN_Q_NORM))
    chosen: list[ir.Value | None] = []
    if groups is not None:
        chosen = [*([None] if sequences.positions is None else []), groups]
    mixed = net.graph.node(
        "PagedAttention",
        [query, norm, *cache, *_places(sequences), *chosen],
        f"{name}.mix",
        [shape(query)[0], config.heads * config.head_dim],
        domain=DOMAIN,
        group=config.streams.indexer.group if groups is not None and config.streams is not None else None,
        **_cache_attributes(net, cache[0]) | dict(sight),
    )
    return net.linear(mixed, names.in_block(layer, names.ATTN_OUTPUT), f"{name}.out")


def write_index(
    net: Network, indexer: Indexer, layer: int, state: str, x: ir.Value, sequences: Sequences, name: str
) -> tuple[ir.Value, ir.Value]:
    """Write the indexer's keys of rows x [rows, hidden]; returns its projected queries and the written pages."""
    weights = {
        f"{name}.index.q": names.in_block(layer, names.INDEXER_Q),
        f"{name}.index.k": names.in_block(layer, names.INDEXER_K),
    }
    queries, keys = net.linears(x, f"{name}.index.projections", weights)
    norm, written = net.vector(names.in_block(layer, names.INDEXER_K_NORM)), net.present(state)
    inputs = [keys, norm, net.past(state), *_places(sequences)]
    attributes = _cache_attributes(net, written) | {"group": indexer.group}
    net.graph.multi_node("PagedIndexWrite", inputs, f"{name}.index.write", [written], DOMAIN, **attributes)
    return queries, written


def select(
    net: Network, indexer: Indexer, layer: int, queries: ir.Value, index: ir.Value, sequences: Sequences, name: str
) -> ir.Value:
    """The groups of positions that rows see: int32 [rows, top]."""
    norm = net.vector(names.in_block(layer, names.INDEXER_Q_NORM))
    attributes = _cache_attributes(net, index) | {"group": indexer.group, "top": indexer.top}
    dims = [shape(queries)[0], indexer.top]
    inputs = [queries, norm, index, *_places(sequences)]
    return net.graph.node("PagedSelect", inputs, f"{name}.index.select", dims, INT32, domain=DOMAIN, **attributes)


def gated_delta_net(net: Network, layer: int, x: ir.Value, sequences: Sequences, recurrence: Recurrence) -> ir.Value:
    """Gated DeltaNet of normed rows x [T, hidden], projected back."""
    config, name = net.config, f"blk.{layer}.gdn"
    qkv, z, alpha, beta = _gdn_projections(net, layer, x, name)
    weights = (names.SSM_CONV1D, names.SSM_DT, names.SSM_A, names.SSM_NORM)
    state = [f"gdn.{layer}.{part}" for part in ("state", "window", "gates")]
    y = net.graph.value(f"{name}.mix", ir.DataType.FLOAT, [shape(x)[0], config.value_dim])
    net.graph.multi_node(
        "GatedDeltaNet",
        [
            *(qkv, z, alpha, beta),
            *(net.vector(names.in_block(layer, weight)) for weight in weights),
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
        gate="sigmoid" if config.sigmoid_gate else None,  # silu where there is none
    )
    return net.linear(y, names.in_block(layer, names.SSM_OUT), f"{name}.out")


def _gdn_projections(net: Network, layer: int, x: ir.Value, name: str) -> list[ir.Value]:
    """The raw projections q|k|v, z, alpha and beta of normed rows x."""
    config = net.config
    weights = {
        f"{name}.qkv": names.in_block(layer, names.ATTN_QKV),
        f"{name}.z": names.in_block(layer, names.ATTN_GATE),
    }
    if not net.weights.has(names.in_block(layer, names.SSM_BA)):
        weights[f"{name}.alpha"] = names.in_block(layer, names.SSM_ALPHA)
        weights[f"{name}.beta"] = names.in_block(layer, names.SSM_BETA)
        return net.linears(x, f"{name}.projections", weights)
    # One matrix whose rows are, for each key head, its value heads' beta and then their alpha.
    weights[f"{name}.beta_alpha"] = names.in_block(layer, names.SSM_BA)
    qkv, z, both = net.linears(x, f"{name}.projections", weights)
    columns = np.arange(2 * config.gdn_v_heads).reshape(config.gdn_k_heads, 2, -1)
    alpha, beta = (
        net.graph.node(
            "Gather",
            [both, net.graph.constant(f"{part}_columns", columns[:, index].reshape(-1), np.int64)],
            f"{name}.{part}",
            [shape(x)[0], config.gdn_v_heads],
            axis=1,
        )
        for part, index in (("alpha", 1), ("beta", 0))
    )
    return [qkv, z, alpha, beta]
