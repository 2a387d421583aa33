"""Random valid calls of the operators of residual streams, n-grams and the indexer."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from fuzz.draw import Array, Call, draw_count, draw_floats, draw_indices, starts_of


def stream_norm(rng: random.Random) -> Call:
    rows, streams, hidden, block = draw_count(rng, 20), rng.randint(1, 5), rng.randint(1, 70), rng.random() < 0.5
    inputs: list[Array | None] = [draw_floats(rng, rows, streams * hidden), draw_floats(rng, streams * hidden)]
    if block:
        inputs += [draw_floats(rng, rows, hidden), draw_floats(rng, rows, streams)]
    outputs = 1 + block
    shapes = ((rows, streams * hidden),) * outputs
    return Call("StreamNorm", inputs, (np.float32,) * outputs, shapes, {"streams": streams, "eps": 1e-6})


def stream_mean(rng: random.Random) -> Call:
    rows, streams, hidden = draw_count(rng, 20), rng.randint(1, 5), rng.randint(1, 70)
    inputs: list[Array | None] = [draw_floats(rng, rows, streams * hidden) for _ in range(2)]
    return Call("StreamMean", inputs, (np.float32,), ((rows, hidden),), {"streams": streams})


def ngram_rows(rng: random.Random) -> Call:
    lengths, size, heads = [rng.randint(1, 9) for _ in range(draw_count(rng, 5))], rng.randint(2, 4), rng.randint(1, 5)
    tokens, rows = sum(lengths), heads * (size - 1)
    inputs: list[Array | None] = [
        draw_indices(rng, tokens, 1000, np.int64),
        draw_indices(rng, len(lengths) * (size - 1), 1000, np.int64).reshape(len(lengths), size - 1),
        starts_of(lengths),
        draw_indices(rng, size, 1 << 45, np.int64),
        1 + draw_indices(rng, rows, 1 << 40, np.int64),
        draw_indices(rng, rows, 1 << 40, np.int64),
    ]
    return Call("NgramRows", inputs, (np.int64,), ((tokens * rows,),), {"eos": rng.randrange(1000)})


def index_write(rng: random.Random) -> Call:
    index, lengths, past, table, attributes = _index(rng)
    rows, width = sum(lengths), index.shape[2]
    inputs: list[Array | None] = [draw_floats(rng, rows, width), draw_floats(rng, width), index]
    inputs += [starts_of(lengths), past, table]
    alias = {0: 2} if rng.random() < 0.5 else {}
    return Call("PagedIndexWrite", inputs, (index.dtype,), (index.shape,), attributes, alias)


def select(rng: random.Random) -> Call:
    index, lengths, past, table, attributes = _index(rng)
    rows, width, top = sum(lengths), index.shape[2], rng.choice((1, 3, 40))
    inputs: list[Array | None] = [draw_floats(rng, rows, rng.randint(1, 3) * width), draw_floats(rng, width), index]
    inputs += [starts_of(lengths), past, table]
    return Call("PagedSelect", inputs, (np.int32,), ((rows, top),), attributes | {"top": top})


def _index(rng: random.Random) -> tuple[Array, list[int], Array, Array, dict[str, Any]]:
    """An index, lengths and pasts of sequences, and a page table."""
    group, width = rng.choice((1, 2, 4)), 16 * rng.randint(1, 4)
    size = group * rng.choice((1, 3, 16))
    lengths = [rng.choice((1, 2, 8, 30)) for _ in range(rng.randint(0, 4))]
    past = [rng.choice((0, 1, 63, 300)) for _ in lengths]
    used = [-(-(before + own) // size) for before, own in zip(past, lengths, strict=True)]
    order = rng.sample(range(sum(used)), sum(used))
    table = np.full((len(lengths), max(used, default=0)), -7, np.int32)
    for row, count in enumerate(used):
        table[row, :count] = [order.pop() for _ in range(count)]
    index = draw_floats(rng, sum(used), size, width).astype(rng.choice((np.float16, np.float32)))
    attributes = {"group": group, "rope_dims": 2 * rng.randint(0, width // 2), "rope_theta": 1e6, "eps": 1e-6}
    return index, lengths, np.array(past, np.int32), table, attributes


def ngram_mix(rng: random.Random) -> Call:
    streams, hidden, dilation, most = rng.randint(1, 4), rng.randint(1, 70), rng.randint(1, 3), rng.choice((1, 4, 8))
    commit, slots, width = rng.random() < 0.5, rng.randint(1, 5), streams * hidden
    sequences = rng.randint(0, slots)
    lengths = [rng.randint(1, 40 if commit else most) for _ in range(sequences)]
    tokens, past = sum(lengths), [rng.choice((0, 3, 1000)) for _ in lengths]
    slots_out = rng.sample(range(slots), sequences)
    free = sorted(set(range(slots)) - set(slots_out))
    slots_in = [slot if rng.random() < 0.7 or not free else rng.choice(free) for slot in slots_out]
    accepted = [rng.randint(0, min(most, length)) for length in past]
    inputs: list[Array | None] = [
        *(draw_floats(rng, tokens, width) for _ in range(3)),
        draw_floats(rng, tokens, hidden),
        draw_floats(rng, width),
        draw_floats(rng, width, 4),
        draw_floats(rng, slots, 3 * dilation + most, width),
        starts_of(lengths),
        *(np.array(values, np.int32) for values in (past, accepted, slots_in, slots_out)),
    ]
    shapes = ((tokens, width), (slots, 3 * dilation + most, width))
    attributes = {"streams": streams, "dilation": dilation, "commit": int(commit), "eps": 1e-6}
    return Call("NgramMix", inputs, (np.float32,) * 2, shapes, attributes, {1: 6} if rng.random() < 0.5 else {})
