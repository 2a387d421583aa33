"""Random valid calls of the operators of the vision tower."""

from __future__ import annotations

import random

import numpy as np

from fuzz.damage import number
from fuzz.draw import Array, Call, draw_count, draw_floats, draw_indices, starts_of


def layer_norm(rng: random.Random) -> Call:
    rows, width = draw_count(rng, 40), rng.randint(1, 70)
    inputs: list[Array | None] = [draw_floats(rng, rows, width), draw_floats(rng, width), draw_floats(rng, width)]
    return Call("LayerNorm", inputs, (np.float32,), ((rows, width),), {"eps": 1e-6})


def bias_activation(rng: random.Random) -> Call:
    rows, width = draw_count(rng, 40), draw_count(rng, 70)
    inputs: list[Array | None] = [draw_floats(rng, rows, width), draw_floats(rng, width)]
    if rng.random() < 0.5:
        inputs.append(draw_floats(rng, rows, width))
    attributes = {"activation": rng.choice(("none", "gelu_tanh", "gelu_erf"))}
    return Call("BiasActivation", inputs, (np.float32,), ((rows, width),), attributes)


def position_rows(rng: random.Random) -> Call:
    rows, width, table = draw_count(rng, 40), draw_count(rng, 70), rng.randint(1, 50)
    inputs: list[Array | None] = [
        draw_floats(rng, rows, width),
        draw_floats(rng, width),
        draw_floats(rng, table, width),
    ]
    inputs += [draw_indices(rng, 4 * rows, table, np.int32).reshape(4, rows), draw_floats(rng, 4, rows)]
    return Call("PositionRows", inputs, (np.float32,), ((rows, width),), {})


def patch_attention(rng: random.Random) -> Call:
    lengths = [rng.choice((1, 3, 49, 300)) for _ in range(draw_count(rng, 4))]
    heads, width, rows = rng.randint(1, 4), 4 * rng.randint(1, 20), sum(lengths)
    places = np.array([number(rng, 31) for _ in range(2 * rows)], np.int32).reshape(2, rows)
    inputs: list[Array | None] = [draw_floats(rng, rows, 3 * heads * width), places, starts_of(lengths)]
    attributes = {"heads": heads, "rope_theta": 1e4}
    return Call("PatchAttention", inputs, (np.float32,), ((rows, heads * width),), attributes)
