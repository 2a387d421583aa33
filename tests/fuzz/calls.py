"""Random valid calls of the operators."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from fuzz.damage import number
from trigraph.models.tensor_types import BLOCK_TYPES

Array = NDArray[Any]
TYPES = ("F32", "F16", *sorted(BLOCK_TYPES))


@dataclass
class Call:
    """One run of an operator. What is set is valid, until it is damaged."""

    op: str
    inputs: list[Array | None]
    output_types: tuple[Any, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, Any]
    alias: dict[int, int] = field(default_factory=dict)
    """By output: the input that shares its buffer."""


def _matmul(rng: random.Random) -> Call:
    kinds, rows = [rng.choice(TYPES) for _ in range(rng.choice((1, 1, 2, 3, 4)))], _count(rng, 40)
    columns = [_count(rng, 70) for _ in kinds]
    width = _width(rng, *kinds)
    return Call(
        "BlockMatMul",
        [_floats(rng, rows, width), *(_weight(rng, k, n, width) for k, n in zip(kinds, columns, strict=True))],
        (np.float32,) * len(kinds),
        tuple((rows, count) for count in columns),
        {"types": ",".join(kinds), "activations": rng.choice(("float32", "int8"))},
    )


def _gated_matmul(rng: random.Random) -> Call:
    kind, rows, columns = rng.choice(TYPES), _count(rng, 40), _count(rng, 70)
    width = _width(rng, kind)
    return Call(
        "GatedBlockMatMul",
        [_floats(rng, rows, width), _floats(rng, rows, width), _weight(rng, kind, columns, width)],
        (np.float32,),
        ((rows, columns),),
        {"type": kind, "activations": rng.choice(("float32", "int8"))},
    )


def _rms_norm(rng: random.Random) -> Call:
    rows, width, residual = _count(rng, 40), rng.randint(1, 70), rng.random() < 0.5
    inputs: list[Array | None] = [_floats(rng, rows, width), _floats(rng, width)]
    outputs = 2 if residual else 1
    if residual:
        inputs.append(_floats(rng, rows, width))
    return Call("RMSNorm", inputs, (np.float32,) * outputs, ((rows, width),) * outputs, {"eps": 1e-6})


def _joined_norms(rng: random.Random) -> Call:
    rows, width, other = _count(rng, 40), rng.randint(1, 70), rng.randint(1, 70)
    inputs: list[Array | None] = [_floats(rng, rows, width), _floats(rng, width)]
    inputs += [_floats(rng, rows, other), _floats(rng, other)]
    return Call("JoinedRMSNorm", inputs, (np.float32,), ((rows, width + other),), {"eps": 1e-6})


def _router(rng: random.Random) -> Call:
    rows, experts = _count(rng, 40), rng.randint(1, 40)
    k = rng.randint(1, experts)
    attributes = {"k": k, "normalize": rng.randint(0, 1)}
    return Call("Router", [_floats(rng, rows, experts)], (np.int64, np.float32), ((rows, k),) * 2, attributes)


def _top_token(rng: random.Random) -> Call:
    rows, width, probability = _count(rng, 9), rng.choice((1, 17, 4096, 5000)), rng.randint(0, 1)
    types = (np.int64, np.float32)[: 1 + probability]
    return Call("TopToken", [_floats(rng, rows, width)], types, ((rows,),) * len(types), {"probability": probability})


def _last_rows(rng: random.Random) -> Call:
    lengths = [rng.randint(1, 9) for _ in range(_count(rng, 5))]
    count, rows, widths = len(lengths), sum(lengths), [_count(rng, 20) for _ in range(rng.choice((1, 2)))]
    return Call(
        "LastRows",
        [_starts(lengths), _indices(rng, count, 100, np.int32), *(_floats(rng, rows, width) for width in widths)],
        (np.int32, np.int32, np.float32, np.float32)[: 2 + len(widths)],
        ((count + 1,), (count,), *((count, width) for width in widths)),
        {},
    )


def _previous_rows(rng: random.Random) -> Call:
    lengths, width = [rng.randint(1, 9) for _ in range(_count(rng, 5))], _count(rng, 20)
    rows = sum(lengths)
    inputs: list[Array | None] = [_floats(rng, rows, width), _floats(rng, len(lengths), width), _starts(lengths)]
    return Call("PreviousRows", inputs, (np.float32,), ((rows, width),), {})


def _gather(rng: random.Random) -> Call:
    kind, rows, ids = rng.choice(TYPES), rng.randint(1, 40), _count(rng, 40)
    width = _width(rng, kind)
    return Call(
        "BlockGather",
        [_indices(rng, ids, rows, np.int64), _weight(rng, kind, rows, width)],
        (np.float32,),
        ((ids, width),),
        {"type": kind},
    )


def _experts(rng: random.Random) -> Call:
    kinds = [rng.choice(TYPES) for _ in range(3)]
    width, ffn = max(32, _width(rng, kinds[0], kinds[1])), max(32, _width(rng, kinds[2]))
    tokens, experts, fused = _count(rng, 30), rng.randint(1, 9), rng.random() < 0.4
    k = rng.randint(1, experts)
    inputs = [
        _floats(rng, tokens, width),
        _indices(rng, tokens * k, experts, np.int64).reshape(tokens, k),
        _floats(rng, tokens, k),
        _weight(rng, kinds[0], experts, 2 * ffn if fused else ffn, width),
        _weight(rng, kinds[2], experts, width, ffn),
        None if fused else _weight(rng, kinds[1], experts, ffn, width),
    ]
    if rng.random() < 0.5:
        inputs += [_floats(rng, tokens, width), _floats(rng, tokens, 1)]
    attributes = {"gate_type": kinds[0], "down_type": kinds[2], "activations": rng.choice(("float32", "int8"))}
    if not fused:
        attributes["up_type"] = kinds[1]
    return Call("GroupedExpertFFN", inputs, (np.float32,), ((tokens, width),), attributes)


def _gated_delta_net(rng: random.Random) -> Call:
    k_heads, dim, commit, most = rng.randint(1, 3), 16 * rng.randint(1, 4), rng.random() < 0.5, rng.choice((1, 4, 8))
    v_heads = k_heads * rng.randint(1, 3)
    slots = rng.randint(1, 5)
    sequences = rng.randint(0, slots)
    lengths = [rng.randint(1, 80 if commit else most) for _ in range(sequences)]
    channels, tokens = (2 * k_heads + v_heads) * dim, sum(lengths)
    past = [rng.choice((0, 3, 1000)) for _ in lengths]
    pending = [rng.randint(0, most) for _ in range(slots)]
    gates = _floats(rng, slots, most, 2 * v_heads)
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
        _floats(rng, tokens, channels),
        _floats(rng, tokens, v_heads * dim),
        _floats(rng, tokens, v_heads),
        _floats(rng, tokens, v_heads),
        _floats(rng, channels, 4),
        _floats(rng, v_heads),
        -abs(_floats(rng, v_heads)),
        _floats(rng, dim),
        _floats(rng, slots, v_heads, dim, dim),
        _floats(rng, slots, 3 + most, channels),
        gates,
        _starts(lengths),
        *(np.array(values, np.int32) for values in (past, accepted, slots_in, slots_out)),
    ]
    shapes = ((tokens, v_heads * dim), *(array.shape for array in inputs[8:11] if array is not None))
    attributes = {"k_heads": k_heads, "eps": 1e-6, "tiled": rng.randrange(2), "commit": int(commit)}
    alias = {1: 8, 2: 9, 3: 10} if rng.random() < 0.5 else {}
    return Call("GatedDeltaNet", inputs, (np.float32,) * 4, shapes, attributes, alias)


def _kv_write(rng: random.Random) -> Call:
    cache, lengths, past, table, attributes = _pages(rng)
    _, _, heads, dim = cache.shape
    rows = sum(lengths)
    inputs: list[Array | None] = [
        _floats(rng, rows, heads * dim),
        _floats(rng, rows, heads * dim),
        _floats(rng, dim),
        cache,
        cache.copy(),
        _starts(lengths),
        past,
        table,
    ]
    kind = cache.dtype
    alias = {0: 3, 1: 4} if rng.random() < 0.5 else {}
    return Call("PagedKVWrite", inputs, (kind, kind), (cache.shape, cache.shape), attributes, alias)


def _attention(rng: random.Random) -> Call:
    cache, lengths, past, table, attributes = _pages(rng)
    _, _, heads, dim = cache.shape
    rows, query_heads = sum(lengths), heads * rng.randint(1, 9)
    inputs: list[Array | None] = [
        _floats(rng, rows, query_heads * 2 * dim),
        _floats(rng, dim),
        cache,
        cache.copy(),
        _starts(lengths),
        past,
        table,
    ]
    return Call("PagedAttention", inputs, (np.float32,), ((rows, query_heads * dim),), attributes)


def _pages(rng: random.Random) -> tuple[Array, list[int], Array, Array, dict[str, Any]]:
    """A cache, lengths and pasts of sequences, and a page table of which only the columns in use are valid."""
    size, heads, dim = rng.choice((1, 3, 16, 64)), rng.randint(1, 3), 16 * rng.randint(1, 5)
    lengths = [rng.choice((1, 2, 8, 30)) for _ in range(rng.randint(0, 4))]
    past = [rng.choice((0, 1, 63, 300)) for _ in lengths]
    used = [-(-(before + own) // size) for before, own in zip(past, lengths, strict=True)]
    columns = max(used, default=0) + rng.randrange(2)
    pages = sum(used) + rng.randrange(2)
    order = rng.sample(range(pages), pages)
    table = np.full((len(lengths), columns), number(rng, 31), np.int32)
    for row, count in enumerate(used):
        table[row, :count] = [order.pop() for _ in range(count)]
    cache = _floats(rng, pages, size, heads, dim).astype(rng.choice((np.float16, np.float32)))
    attributes = {"rope_dims": 2 * rng.randint(0, dim // 2), "rope_theta": 1e6, "eps": 1e-6}
    return cache, lengths, np.array(past, np.int32), table, attributes


def _count(rng: random.Random, most: int) -> int:
    return rng.choice((0, 1, 2, rng.randint(0, most), rng.randint(0, most)))


def _width(rng: random.Random, *kinds: str) -> int:
    block = max(GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0] for kind in kinds)
    return block * rng.randint(1, 3) if block > 1 else rng.randint(0, 300)


def _floats(rng: random.Random, *shape: int) -> Array:
    values = np.random.default_rng(rng.getrandbits(32)).standard_normal(shape).astype(np.float32)
    scale = rng.choice((1, 1, 1, 0, 1e-30, 1e30))
    if values.size and rng.random() < 0.1:
        values.flat[rng.randrange(values.size)] = rng.choice((np.nan, np.inf, -np.inf))
    return values * np.float32(scale)


def _weight(rng: random.Random, kind: str, *shape: int) -> Array:
    """Random weights [.., width], from any element of a mapped file on: any bytes are a block."""
    if kind in ("F32", "F16"):
        values = _floats(rng, *shape).astype("f4" if kind == "F32" else "f2")
    else:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        bits = np.random.default_rng(rng.getrandbits(32))
        values = bits.integers(0, 256, (*shape[:-1], shape[-1] // block * size), np.uint8)
    before = rng.choice((0, 1, 3, 32))
    file = np.empty(before + values.size, values.dtype)
    file[before:] = values.reshape(-1)
    return file[before:].reshape(values.shape)


def _indices(rng: random.Random, count: int, below: int, dtype: Any) -> Array:
    return np.array([rng.randrange(below) for _ in range(count)], dtype)


def _starts(lengths: Sequence[int]) -> Array:
    return np.cumsum([0, *lengths]).astype(np.int32)


CALLS: dict[str, Callable[[random.Random], Call]] = {
    "BlockMatMul": _matmul,
    "GatedBlockMatMul": _gated_matmul,
    "RMSNorm": _rms_norm,
    "JoinedRMSNorm": _joined_norms,
    "Router": _router,
    "TopToken": _top_token,
    "LastRows": _last_rows,
    "PreviousRows": _previous_rows,
    "BlockGather": _gather,
    "GatedDeltaNet": _gated_delta_net,
    "GroupedExpertFFN": _experts,
    "PagedKVWrite": _kv_write,
    "PagedAttention": _attention,
}
"""Makers of random valid calls."""
