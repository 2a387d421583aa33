"""Random valid calls of the operators of block drafters."""

from __future__ import annotations

import random

import numpy as np

from fuzz.draw import Array, Call, draw_count, draw_floats, starts_of


def block_convolution(rng: random.Random) -> Call:
    lengths, groups, share = (
        [rng.randint(1, 9) for _ in range(draw_count(rng, 5))],
        rng.randint(1, 9),
        rng.randint(1, 40),
    )
    rows, width, taps, first = sum(lengths), groups * share, rng.randint(1, 12), rng.randint(0, 12)
    coefficients = first + taps + rng.randrange(2)
    inputs: list[Array | None] = [draw_floats(rng, rows, width), draw_floats(rng, rows, coefficients * groups)]
    inputs += [draw_floats(rng, coefficients, width), starts_of(lengths)]
    return Call("BlockConvolution", inputs, (np.float32,), ((rows, width),), {"first": first, "taps": taps})


def candidate_edges(rng: random.Random) -> Call:
    lengths, count, rank = (
        [rng.randint(1, 9) for _ in range(draw_count(rng, 5))],
        rng.randint(1, 40),
        rng.randint(1, 70),
    )
    rows = sum(lengths)
    inputs: list[Array | None] = [draw_floats(rng, rows, count), draw_floats(rng, rows, rank)]
    inputs += [draw_floats(rng, rows * count, rank) for _ in range(2)]
    inputs += [starts_of(lengths), *([draw_floats(rng, rows, rank)] if rng.random() < 0.5 else [])]
    attributes = {"drafting": rng.randrange(2)}
    return Call("CandidateEdges", inputs, (np.float32,), ((rows, count, count),), attributes)


def top_tokens(rng: random.Random) -> Call:
    rows, width = draw_count(rng, 9), rng.choice((1, 17, 256, 4096, 5001))
    count = rng.randint(1, min(width, 256))
    shapes = ((rows, count),) * 2
    return Call("TopTokens", [draw_floats(rng, rows, width)], (np.float32, np.int64), shapes, {"count": count})
