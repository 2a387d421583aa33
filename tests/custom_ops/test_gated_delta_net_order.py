"""The order in which the delta rule adds, on bits, against float32 in NumPy: four bands of the state's rows, joined.

Queries, keys and values are so large that SiLU leaves them as they are; gates are what the operator makes of them.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from support.operators.gdn_cases import EPS, Kernel, Rows, Shape, make_step, random_rows, random_state, random_weights
from support.operators.run import same_bits

F32 = NDArray[np.float32]


def fma(a: F32, b: F32, c: F32) -> F32:
    """a b + c, rounded once: in float64, to an odd last bit, which the rounding to float32 then cannot mistake."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    even = (total.view(np.int64) & 1) == 0
    return np.where((lost != 0) & even, np.nextafter(total, np.copysign(np.inf, lost)), total).astype(np.float32)


def dot(a: F32, b: F32) -> F32:
    """Along the last axis: a chain in each of 16 lanes, then lane i + 8 to lane i, and so on."""
    lanes = np.zeros((*a.shape[:-1], 16), np.float32)
    for i in range(0, a.shape[-1], 16):
        lanes = fma(a[..., i : i + 16], b[..., i : i + 16], lanes)
    for n in (8, 4, 2, 1):
        lanes = lanes[..., :n] + lanes[..., n : 2 * n]
    return lanes


def unit(x: F32, scale: float) -> F32:
    factor: F32 = np.float32(scale) / np.sqrt(dot(x, x) + np.float32(EPS))
    return x * factor


def over_rows(state: F32, x: F32) -> F32:
    """S^T x of heads: state [v, D, D], x [v, D]."""
    heads, dim = x.shape
    rows, factors = state.reshape(heads, 4, dim // 4, dim), x.reshape(heads, 4, dim // 4, 1)
    band = np.zeros((heads, 4, dim), np.float32)
    for i in range(dim // 4):
        band = fma(factors[:, :, i], rows[:, :, i], band)
    return (band[:, 0] + band[:, 1]) + (band[:, 2] + band[:, 3])


@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.parametrize("dim", [16, 48, 112, 128])
def test_rows_of_the_state_are_added_in_four_bands(isa: str, dim: int, tokens: int) -> None:
    rng = np.random.default_rng(dim + tokens)
    shape = Shape(1, 2, dim)
    weights = random_weights(rng, shape)
    weights.conv[:] = (0, 0, 0, 1)
    large = rng.uniform(32, 64, (tokens, shape.channels)).astype(np.float32)
    rows = random_rows(rng, shape, tokens)
    rows = Rows(
        large, np.full_like(rows.z, 32), np.tile(rows.alpha[0], (tokens, 1)), np.tile(rows.beta[0], (tokens, 1))
    )
    state, step = random_state(rng, shape, 1), make_step([tokens], [9], [0], [0])
    prefill, verify = (Kernel(shape, weights, commit=commit) for commit in (True, False))
    y, present = prefill(rows, state, step)

    # The state after a token that changes nothing else, and the gates that wait after a verify.
    shut = replace(rows[:1], beta=np.full((1, 2), -1e4, np.float32))
    ones = replace(state, state=np.ones_like(state.state))
    decay = prefill(shut, ones, make_step([1], [9], [0], [0]))[1].state[0, :, 0, :1]
    beta = verify(rows[:1], state, make_step([1], [9], [0], [0]))[1].gates[0, 0, 2:, None]
    assert ((decay > 0) & (decay < 1) & (beta > 0) & (beta < 1)).all()

    heads = large.reshape(tokens, 4, dim)
    q, k, v = unit(heads[:, :1], 1 / np.sqrt(np.float32(dim))), unit(heads[:, 1:2], 1), heads[:, 2:]
    wanted, s = np.empty_like(v), state.state[0]
    for t in range(tokens):
        key, query = (np.repeat(x[t], 2, axis=0) for x in (k, q))
        delta = beta * (v[t] - decay * over_rows(s, key))
        wanted[t] = fma(dot(query, key), delta, decay * over_rows(s, query))
        s = fma(key[:, :, None], delta[:, None], decay[:, :, None] * s)
    assert same_bits(present.state[0], s)
    factor = np.float32(1) / np.sqrt(dot(wanted, wanted) / np.float32(dim) + np.float32(EPS))
    assert same_bits(y, (wanted * factor * weights.norm * np.float32(32)).reshape(tokens, -1))
