"""Random choices of tokens.

At each position of a seed each token has a number of its own, drawn from the exponential distribution. Of the tokens
that the filters let through, the one is chosen whose number divided by its probability is least: that is each one with
its probability (a race of exponential clocks, also known as the Gumbel-max trick; Yellott 1977). The choice depends on
logits, seed and position alone. Where two distributions are alike, the same token tends to win in both, so a draft that
is drawn like this from the logits of the MTP head is right far more often than the head's most likely token.

It is the same on every machine, to the bit, so e^x and ln are computed here, in plain arithmetic. The operator library
computes it too: in the midst of decoding, a few lines of Python take longer than all of this.
"""

import ctypes
from functools import cache
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops import library_function
from trigraph.runtime.device.sampler import SamplingParameters

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_LEAST = -708.0  # e^x of what is less counts as 0
_LN2, _LOG2E = float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")


def draw(
    logits: NDArray[np.float32], ids: NDArray[np.int64] | None, parameters: SamplingParameters, position: int
) -> int | None:
    """The token that is drawn from logits [n] of tokens `ids` [n], which ascend; without them, of the first n tokens.

    None when no logit is a finite number, or one is no number or infinite.
    """
    function = _function()
    if function is None or not len(logits):
        return _draw(logits, ids, parameters, position)
    if not logits.flags.carray:
        logits = logits.copy()  # ctypes takes contiguous memory that could be written
    tokens = None if ids is None else ctypes.c_int64.from_buffer(ids.data)
    first = ctypes.c_float.from_buffer(logits.data)
    token: int = function(first, tokens, len(logits), *parameters, position)
    return None if token < 0 else token


@cache
def _function() -> Any:
    function = library_function("trigraph_draw")
    if function is not None:
        real, integer, word = ctypes.c_double, ctypes.c_int64, ctypes.c_uint64
        pointers = (ctypes.POINTER(ctypes.c_float), ctypes.POINTER(integer))
        function.argtypes = [*pointers, integer, real, integer, real, real, word, word]
        function.restype = integer
    return function


def _draw(
    logits: NDArray[np.float32], ids: NDArray[np.int64] | None, parameters: SamplingParameters, position: int
) -> int | None:
    """Draws a token, in NumPy."""
    if not len(logits) or not np.isfinite(logits.max()):
        return None
    places, weights = survivors(logits, parameters)
    tokens = places if ids is None else ids[places]
    times = -log(numbers(parameters.seed, position, tokens)) / weights
    return int(tokens[times == times.min()].min())


def survivors(
    logits: NDArray[np.float32], parameters: SamplingParameters
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The places in `logits` that the filters let through, most likely first, and their weights: 1 is the largest."""
    temperature, top_k, top_p, min_p, _ = parameters
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    with np.errstate(over="ignore"):
        every = exp((logits.astype(np.float64) - float(logits.max())) / temperature)
    weights = every[order]
    kept = np.searchsorted(-weights, -max(min_p, np.nextafter(0, 1)), side="right")
    if top_p < 1:
        total = (weights if top_k else every).cumsum()[-1]  # added one after another
        kept = min(kept, np.searchsorted(weights.cumsum(), top_p * total) + 1)
    return order[:kept], weights[:kept]


def numbers(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number between 0 and 1 for each token: of output `token` of a SplitMix64 generator whose state is output
    `position` of another one, whose state is the first output of that of the seed."""
    key = int(_outputs(int(_outputs(seed, np.zeros(1, np.uint64))[0]), np.array([position], np.uint64))[0])
    bits = _outputs(key, tokens.astype(np.uint64))
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _outputs(state: int, number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014."""
    z = np.uint64(state) + (number + np.uint64(1)) * np.uint64(_STEP)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


def exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """e^x for x <= 0: 2^n times the Taylor series of the rest, which is ln 2 / 2 at most."""
    y = np.maximum(x, _LEAST)
    n = np.rint(y * _LOG2E)
    rest = (y - n * _LN2_HIGH) - n * _LN2_LOW
    total = np.full_like(rest, 1 / factorial(13))
    for k in range(12, -1, -1):
        total = total * rest + 1 / factorial(k)
    return np.where(x < _LEAST, 0.0, np.ldexp(total, n.astype(np.int32)))


def log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ln x for x >= 2^-1022: of the mantissa by the series of artanh((m - 1) / (m + 1)), and of the power of two."""
    mantissa, power = np.frexp(x)
    small = mantissa < np.sqrt(0.5)
    mantissa = np.where(small, 2 * mantissa, mantissa)
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    total = np.full_like(s, 1 / 21)
    for k in range(19, 0, -2):
        total = total * square + 1 / k
    result: NDArray[np.float64] = (power - small) * _LN2 + 2 * s * total
    return result
