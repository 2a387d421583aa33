"""The multi-token-prediction head: one attention block on (token p, hidden p-1) that predicts token p+1."""

from __future__ import annotations

import onnx_ir as ir

from trigraph.exporter.graphs.images import ImageRows, with_images
from trigraph.exporter.graphs.layers import attention, feed_forward_residual, kv_weights, kv_write, qkv_weights
from trigraph.exporter.graphs.network import Network
from trigraph.exporter.graphs.sequences import Sequences, last_rows
from trigraph.models import names

STATE = "mtp"


def write_kv(
    net: Network, ids: ir.Value, embedded: ir.Value, before: ir.Value, sequences: Sequences, images: ImageRows | None
) -> None:
    """Write the head's keys and values for every row, which is all that later drafts need of a prompt.

    `embedded` holds the trunk's embeddings of `ids`, `before` the hidden row of the token before each. Entries of
    `images` are made from their rows.
    """
    layer = net.config.trunk_layers
    own = names.in_block(layer, names.NEXTN_EMBED_TOKENS)
    if net.weights.has(own):
        embedded = with_images(net.graph, net.embed(ids, own, "mtp.embed"), images, "mtp.images")
    x = _combine(net, embedded, before)
    normed, _ = net.norm(x, names.in_block(layer, names.ATTN_NORM), "mtp.attn_norm")
    key, value = net.linears(normed, "mtp.attn.kv", kv_weights(layer, "mtp.attn"))
    kv_write(net, layer, STATE, key, value, sequences, "mtp.attn")


def draft_layer(
    net: Network, ids: ir.Value, before: ir.Value, sequences: Sequences, vocab: int | None
) -> tuple[ir.Value, ir.Value]:
    """Run the head: keys and values for all rows, the rest for each sequence's last row only.

    Returns the hidden rows [S, hidden] after the head's norm, and their logits over the first `vocab` tokens.
    """
    layer = net.config.trunk_layers
    table = _own(net, names.NEXTN_EMBED_TOKENS, names.TOKEN_EMBD)
    x = _combine(net, net.embed(ids, table, "mtp.embed"), before)
    normed, _ = net.norm(x, names.in_block(layer, names.ATTN_NORM), "mtp.attn_norm")
    query, key, value = net.linears(normed, "mtp.attn.qkv", qkv_weights(layer, "mtp.attn"))
    cache = kv_write(net, layer, STATE, key, value, sequences, "mtp.attn")

    sequences, (x, query) = last_rows(net.graph, sequences, [x, query], "mtp.last")
    mixed = attention(net, layer, query, cache, sequences, "mtp.attn")
    x, addend = feed_forward_residual(net, layer, x, mixed, "mtp")
    norm = _own(net, names.NEXTN_SHARED_HEAD_NORM, names.OUTPUT_NORM)
    hidden, _ = net.norm(x, norm, "mtp.head_norm", addend)
    logits = net.linear(hidden, _own(net, names.NEXTN_SHARED_HEAD_HEAD, net.output_matrix), "mtp.head", vocab)
    return hidden, logits


def _combine(net: Network, embedded: ir.Value, before: ir.Value) -> ir.Value:
    """eh_proj [enorm(embedding) | hnorm(hidden)]: the embedding comes first."""
    layer = net.config.trunk_layers
    weights = [names.in_block(layer, name) for name in (names.NEXTN_ENORM, names.NEXTN_HNORM)]
    both = net.joined_norms([embedded, before], weights, "mtp.norms")
    return net.linear(both, names.in_block(layer, names.NEXTN_EH_PROJ), "mtp.eh_proj")


def _own(net: Network, head: str, trunk: str) -> str:
    """The head's own tensor, or the trunk's when it has none."""
    own = names.in_block(net.config.trunk_layers, head)
    return own if net.weights.has(own) else trunk
