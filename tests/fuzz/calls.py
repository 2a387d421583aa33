"""Random valid calls of the operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.block_calls import block_convolution, candidate_edges, top_tokens
from fuzz.damage import number
from fuzz.draw import (
    TYPES,
    Array,
    Call,
    draw_count,
    draw_floats,
    draw_indices,
    draw_weight,
    draw_width,
    starts_of,
)
from fuzz.stream_calls import index_write, ngram_mix, ngram_rows, select, stream_mean, stream_norm
from fuzz.tower_calls import bias_activation, layer_norm, patch_attention, position_rows

# What models have: some kernels are for these alone.
_USUAL_TYPES, _USUAL_DIMS = ("Q8_0", "Q4_K", "Q5_K", "Q6_K"), (64, 128)


def _matmul(rng: random.Random) -> Call:
    kinds, rows = [rng.choice(TYPES) for _ in range(rng.choice((1, 1, 2, 3, 4)))], draw_count(rng, 40)
    columns = [draw_count(rng, 70) for _ in kinds]
    width = draw_width(rng, *kinds)
    return Call(
        "BlockMatMul",
        [draw_floats(rng, rows, width), *(draw_weight(rng, k, n, width) for k, n in zip(kinds, columns, strict=True))],
        (np.float32,) * len(kinds),
        tuple((rows, count) for count in columns),
        {"types": ",".join(kinds), "activations": rng.choice(("float32", "int8"))},
    )


def _gated_matmul(rng: random.Random) -> Call:
    kind, rows, columns = rng.choice(TYPES), draw_count(rng, 40), draw_count(rng, 70)
    width = draw_width(rng, kind)
    attributes: dict[str, Any] = {"type": kind, "activations": rng.choice(("float32", "int8"))}
    gate, up, weight = (
        draw_floats(rng, rows, width),
        draw_floats(rng, rows, width),
        draw_weight(rng, kind, columns, width),
    )
    inputs: list[Array | None] = [gate, up, weight]
    if rng.random() < 0.3:
        inputs[1], attributes["scale"] = None, 0.25
    return Call("GatedBlockMatMul", inputs, (np.float32,), ((rows, columns),), attributes)


def _rms_norm(rng: random.Random) -> Call:
    rows, width, residual = draw_count(rng, 40), rng.randint(1, 70), rng.random() < 0.5
    inputs: list[Array | None] = [draw_floats(rng, rows, width), draw_floats(rng, width)]
    outputs = 2 if residual else 1
    if residual:
        inputs.append(draw_floats(rng, rows, width))
    return Call("RMSNorm", inputs, (np.float32,) * outputs, ((rows, width),) * outputs, {"eps": 1e-6})


def _joined_norms(rng: random.Random) -> Call:
    rows, width, other = draw_count(rng, 40), rng.randint(1, 70), rng.randint(1, 70)
    inputs: list[Array | None] = [draw_floats(rng, rows, width), draw_floats(rng, width)]
    inputs += [draw_floats(rng, rows, other), draw_floats(rng, other)]
    return Call("JoinedRMSNorm", inputs, (np.float32,), ((rows, width + other),), {"eps": 1e-6})


def _router(rng: random.Random) -> Call:
    rows, experts = draw_count(rng, 40), rng.randint(1, 40)
    k = rng.randint(1, experts)
    attributes = {"k": k, "normalize": rng.randint(0, 1)}
    return Call("Router", [draw_floats(rng, rows, experts)], (np.int64, np.float32), ((rows, k),) * 2, attributes)


def _top_token(rng: random.Random) -> Call:
    rows, width, probability = draw_count(rng, 9), rng.choice((1, 17, 4096, 5000)), rng.randint(0, 1)
    types = (np.int64, np.float32)[: 1 + probability]
    return Call(
        "TopToken", [draw_floats(rng, rows, width)], types, ((rows,),) * len(types), {"probability": probability}
    )


def _last_rows(rng: random.Random) -> Call:
    lengths = [rng.randint(1, 9) for _ in range(draw_count(rng, 5))]
    count, rows, widths = len(lengths), sum(lengths), [draw_count(rng, 20) for _ in range(rng.choice((1, 2)))]
    return Call(
        "LastRows",
        [
            starts_of(lengths),
            draw_indices(rng, count, 100, np.int32),
            *(draw_floats(rng, rows, width) for width in widths),
        ],
        (np.int32, np.int32, np.float32, np.float32)[: 2 + len(widths)],
        ((count + 1,), (count,), *((count, width) for width in widths)),
        {},
    )


def _previous_rows(rng: random.Random) -> Call:
    lengths, width = [rng.randint(1, 9) for _ in range(draw_count(rng, 5))], draw_count(rng, 20)
    rows = sum(lengths)
    inputs: list[Array | None] = [
        draw_floats(rng, rows, width),
        draw_floats(rng, len(lengths), width),
        starts_of(lengths),
    ]
    return Call("PreviousRows", inputs, (np.float32,), ((rows, width),), {})


def _gather(rng: random.Random) -> Call:
    kind, rows, ids = rng.choice(TYPES), rng.randint(1, 40), draw_count(rng, 40)
    width = draw_width(rng, kind)
    return Call(
        "BlockGather",
        [draw_indices(rng, ids, rows, np.int64), draw_weight(rng, kind, rows, width)],
        (np.float32,),
        ((ids, width),),
        {"type": kind},
    )


def _experts(rng: random.Random) -> Call:
    kinds = [rng.choice(TYPES) for _ in range(3)]
    width, ffn = max(32, draw_width(rng, kinds[0], kinds[1])), max(32, draw_width(rng, kinds[2]))
    if usual := rng.random() < 0.5:
        kinds = [rng.choice(_USUAL_TYPES)] * 2 + [rng.choice(_USUAL_TYPES)]
        width, ffn = 256 * rng.randint(1, 3), 256 * rng.randint(1, 3)
    tokens, experts, fused = draw_count(rng, 30), rng.randint(1, 9), rng.random() < 0.4
    k = rng.randint(1, experts)
    inputs = [
        draw_floats(rng, tokens, width),
        draw_indices(rng, tokens * k, experts, np.int64).reshape(tokens, k),
        draw_floats(rng, tokens, k),
        draw_weight(rng, kinds[0], experts, 2 * ffn if fused else ffn, width),
        draw_weight(rng, kinds[2], experts, width, ffn),
        None if fused else draw_weight(rng, kinds[1], experts, ffn, width),
    ]
    if rng.random() < 0.5:
        inputs += [draw_floats(rng, tokens, width), draw_floats(rng, tokens, 1)]
    activations = "int8" if usual else rng.choice(("float32", "int8"))
    attributes = {"gate_type": kinds[0], "down_type": kinds[2], "activations": activations}
    if not fused:
        attributes["up_type"] = kinds[1]
    return Call("GroupedExpertFFN", inputs, (np.float32,), ((tokens, width),), attributes)


def _gated_delta_net(rng: random.Random) -> Call:
    k_heads, commit, most = rng.randint(1, 3), rng.random() < 0.5, rng.choice((1, 4, 8))
    dim = rng.choice((16 * rng.randint(1, 4), *_USUAL_DIMS))
    v_heads = k_heads * rng.randint(1, 3)
    slots = rng.randint(1, 5)
    sequences = rng.choice((1, rng.randint(0, slots)))
    lengths = [rng.randint(1, 80 if commit else most) for _ in range(sequences)]
    channels, tokens = (2 * k_heads + v_heads) * dim, sum(lengths)
    past = [rng.choice((0, 3, 1000)) for _ in lengths]
    pending = [rng.randint(0, most) for _ in range(slots)]
    gates = draw_floats(rng, slots, most, 2 * v_heads)
    for slot, count in enumerate(pending):
        gates[slot, :count, v_heads:] = abs(gates[slot, :count, v_heads:])
        gates[slot, count:, v_heads:] = -1
    slots_out = rng.sample(range(slots), sequences)
    free = sorted(set(range(slots)) - set(slots_out))
    slots_in = [slot if rng.random() < 0.7 or not free else rng.choice(free) for slot in slots_out]
    accepted = [
        0 if length == 0 else rng.randint(0, min(pending[slot], length))
        for slot, length in zip(slots_in, past, strict=True)
    ]
    inputs: list[Array | None] = [
        draw_floats(rng, tokens, channels),
        draw_floats(rng, tokens, v_heads * dim),
        draw_floats(rng, tokens, v_heads),
        draw_floats(rng, tokens, v_heads),
        draw_floats(rng, channels, 4),
        draw_floats(rng, v_heads),
        -abs(draw_floats(rng, v_heads)),
        draw_floats(rng, dim),
        draw_floats(rng, slots, v_heads, dim, dim),
        draw_floats(rng, slots, 3 + most, channels),
        gates,
        starts_of(lengths),
        *(np.array(values, np.int32) for values in (past, accepted, slots_in, slots_out)),
    ]
    shapes = ((tokens, v_heads * dim), *(array.shape for array in inputs[8:11] if array is not None))
    attributes: dict[str, Any] = {"k_heads": k_heads, "eps": 1e-6, "tiled": rng.randrange(2), "commit": int(commit)}
    if rng.random() < 0.5:
        attributes["gate"] = "sigmoid"
    alias = {1: 8, 2: 9, 3: 10} if rng.random() < 0.5 else {}
    return Call("GatedDeltaNet", inputs, (np.float32,) * 4, shapes, attributes, alias)


def _kv_write(rng: random.Random) -> Call:
    cache, lengths, past, table, attributes = _pages(rng)
    _, _, heads, dim = cache.shape
    rows = sum(lengths)
    inputs: list[Array | None] = [
        draw_floats(rng, rows, heads * dim),
        draw_floats(rng, rows, heads * dim),
        draw_floats(rng, dim),
        cache,
        cache.copy(),
        starts_of(lengths),
        past,
        table,
        *_axes(rng, rows, attributes),
    ]
    kind = cache.dtype
    alias = {0: 3, 1: 4} if rng.random() < 0.5 else {}
    return Call("PagedKVWrite", inputs, (kind, kind), (cache.shape, cache.shape), attributes, alias)


def _attention(rng: random.Random) -> Call:
    cache, lengths, past, table, attributes = _pages(rng)
    _, _, heads, dim = cache.shape
    rows, query_heads, gate = sum(lengths), heads * rng.randint(1, 9), rng.randrange(2)
    if rng.random() < 0.5:
        attributes |= {"causal": rng.randrange(2), "window": rng.choice((0, 1, 5, 300, 1 << 30))}
    inputs: list[Array | None] = [
        draw_floats(rng, rows, query_heads * (1 + gate) * dim),
        draw_floats(rng, dim),
        cache,
        cache.copy(),
        starts_of(lengths),
        past,
        table,
        *_axes(rng, rows, attributes),
    ]
    shape = (rows, query_heads * dim)
    return Call("PagedAttention", inputs, (np.float32,), (shape,), attributes | {"gate": gate})


def _axes(rng: random.Random, rows: int, attributes: dict[str, Any]) -> list[Array]:
    """Positions on three axes, and the attribute that they need; or neither."""
    if rng.random() < 0.5:
        return []
    pairs = attributes["rope_dims"] // 2
    row = rng.randint(0, pairs)
    column = rng.randint(0, pairs - row)
    attributes["rope_sections"] = [pairs - row - column, row, column]
    return [np.array([number(rng, 32) for _ in range(3 * rows)], np.int64).astype(np.int32).reshape(3, rows)]


def _pages(rng: random.Random) -> tuple[Array, list[int], Array, Array, dict[str, Any]]:
    """A cache, lengths and pasts of sequences, and a page table of which only the columns in use are valid."""
    size, heads, dim = rng.choice((1, 3, 16, 64)), rng.randint(1, 3), rng.choice((16 * rng.randint(1, 5), *_USUAL_DIMS))
    lengths = [rng.choice((1, 2, 8, 30)) for _ in range(rng.choice((1, rng.randint(0, 4))))]
    past = [rng.choice((0, 1, 63, 300)) for _ in lengths]
    used = [-(-(before + own) // size) for before, own in zip(past, lengths, strict=True)]
    columns = max(used, default=0) + rng.randrange(2)
    pages = sum(used) + rng.randrange(2)
    order = rng.sample(range(pages), pages)
    table = np.full((len(lengths), columns), number(rng, 31), np.int32)
    for row, count in enumerate(used):
        table[row, :count] = [order.pop() for _ in range(count)]
    cache = draw_floats(rng, pages, size, heads, dim).astype(rng.choice((np.float16, np.float32)))
    attributes = {"rope_dims": 2 * rng.randint(0, dim // 2), "rope_theta": 1e6, "eps": 1e-6}
    return cache, lengths, np.array(past, np.int32), table, attributes


CALLS: dict[str, Callable[[random.Random], Call]] = {
    "BlockMatMul": _matmul,
    "GatedBlockMatMul": _gated_matmul,
    "RMSNorm": _rms_norm,
    "JoinedRMSNorm": _joined_norms,
    "LayerNorm": layer_norm,
    "BiasActivation": bias_activation,
    "PositionRows": position_rows,
    "PatchAttention": patch_attention,
    "StreamNorm": stream_norm,
    "StreamMean": stream_mean,
    "NgramRows": ngram_rows,
    "NgramMix": ngram_mix,
    "PagedIndexWrite": index_write,
    "PagedSelect": select,
    "Router": _router,
    "TopToken": _top_token,
    "TopTokens": top_tokens,
    "BlockConvolution": block_convolution,
    "CandidateEdges": candidate_edges,
    "LastRows": _last_rows,
    "PreviousRows": _previous_rows,
    "BlockGather": _gather,
    "GatedDeltaNet": _gated_delta_net,
    "GroupedExpertFFN": _experts,
    "PagedKVWrite": _kv_write,
    "PagedAttention": _attention,
}
"""Makers of random valid calls."""
