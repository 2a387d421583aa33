"""How likely the model itself found a token: before biases, penalties, temperature, filters and constraints."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.draws import exp, log
from trigraph.runtime.sampling.sampling import Sampling
from trigraph.runtime.sampling.top_logits import top_logits

_BLOCK = 16384  # logits whose exponentials are computed at once: so many stay in a cache


@dataclass(frozen=True)
class TokenLogprob:
    """A token's logarithm of its probability, and those of the most likely tokens in its place, that first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """What one row of logits [vocabulary] says of `token`, and of the `top` most likely ones.

    The same bits on every machine.
    """
    total = log_of_sum(logits)
    ids, values = top_logits(logits, top) if top else ([], [])
    return TokenLogprob(
        token,
        float(logits[token]) - total,
        tuple((other, value - total) for other, value in zip(ids, values, strict=True)),
    )


def log_of_sum(x: NDArray[np.float32]) -> float:
    """Ln of the sum of e^x, one after another; NaN where the largest is no number or infinite.

    The same bits on every machine.
    """
    largest = float(x.max())
    if not math.isfinite(largest):
        return math.nan
    total = 0.0
    for start in range(0, len(x), _BLOCK):
        terms = exp(x[start : start + _BLOCK].astype(np.float64) - largest)
        terms[0] += total
        total = terms.cumsum()[-1]
    return largest + float(log(np.array(total)))


def scoring(prompt: list[int], top: int) -> tuple[list[int], Options]:
    """A request whose log-probabilities are those of the prompt's tokens from the second on: its prompt, and options.

    `top`: how many of the most likely tokens each of them has beside it.
    """
    rest = tuple(prompt[1:])
    options = Options(Sampling(temperature=0), len(rest), ignore_eos=True, forced=rest, logprobs=top)
    return prompt[:1], options
