"""The multi-token-prediction head: one attention block on (token p, hidden p-1) that predicts token p+1."""

from __future__ import annotations

import onnx_ir as ir

from trigraph.exporter.graphs.builder import shape
from trigraph.exporter.graphs.layers import attention, feed_forward_residual, kv_write
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences, gather, last_index, last_rows

STATE = "mtp"


def write_entries(net: Network, ids: ir.Value, embedded: ir.Value, before: ir.Value, sequences: Sequences) -> None:
    """Write the head's keys and values for every row: all that later drafts need of a prompt.

    `embedded` holds the trunk's embeddings of `ids`, `before` the hidden row of the token before each.
    """
    own = f"{_nextn(net)}.embed_tokens.weight"
    if net.weights.has(own):
        embedded = net.embed(ids, own, "mtp.embed")
    x = _combine(net, embedded, before)
    normed = net.norm(x, f"{_prefix(net)}.attn_norm.weight", "mtp.attn_norm")
    kv_write(net, _prefix(net), STATE, normed, sequences, "mtp.attn")


def draft_layer(
    net: Network, ids: ir.Value, before: ir.Value, sequences: Sequences, vocab: int | None
) -> tuple[ir.Value, ir.Value]:
    """Run the head: entries for all rows, everything after them for each sequence's last row only.

    Returns the hidden rows [S, hidden] after the head's norm, and their logits over the first `vocab` tokens.
    """
    prefix, nextn = _prefix(net), _nextn(net)
    table = _first(net, f"{nextn}.embed_tokens.weight", "token_embd.weight")
    x = _combine(net, net.embed(ids, table, "mtp.embed"), before)
    normed = net.norm(x, f"{prefix}.attn_norm.weight", "mtp.attn_norm")
    cache = kv_write(net, prefix, STATE, normed, sequences, "mtp.attn")

    last = last_index(net.graph, sequences.cu_seqlens)
    x, normed = gather(net.graph, x, last, "mtp.last"), gather(net.graph, normed, last, "mtp.last_normed")
    mixed = attention(net, prefix, normed, cache, last_rows(net.graph, sequences, last), "mtp.attn")
    x = feed_forward_residual(net, prefix, x, mixed, "mtp")
    hidden = net.norm(x, _first(net, f"{nextn}.shared_head_norm.weight", "output_norm.weight"), "mtp.head_norm")
    logits = net.linear(hidden, _first(net, f"{nextn}.shared_head_head.weight", net.output_matrix), "mtp.head", vocab)
    return hidden, logits


def _combine(net: Network, embedded: ir.Value, before: ir.Value) -> ir.Value:
    """eh_proj [enorm(embedding) | hnorm(hidden)]: the embedding comes first."""
    nextn = _nextn(net)
    embedded = net.norm(embedded, f"{nextn}.enorm.weight", "mtp.enorm")
    before = net.norm(before, f"{nextn}.hnorm.weight", "mtp.hnorm")
    both = net.graph.node(
        "Concat", [embedded, before], "mtp.concat", [shape(embedded)[0], 2 * net.config.hidden], axis=1
    )
    return net.linear(both, f"{nextn}.eh_proj.weight", "mtp.eh_proj")


def _prefix(net: Network) -> str:
    return f"blk.{net.config.trunk_layers}"


def _nextn(net: Network) -> str:
    return f"{_prefix(net)}.nextn"


def _first(net: Network, own: str, trunk: str) -> str:
    """The head's own tensor, or the trunk's when it has none."""
    return own if net.weights.has(own) else trunk
