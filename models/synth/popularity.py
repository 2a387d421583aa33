"""Routers that choose some experts more often than others, as those of trained models do."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError

_MOST = 0.45  # of a token's chances: rows alone, of either sign, cannot reach a half


def check_skew(skew: float) -> None:
    """Raises TrigraphError for a skew that is not from 0 to 2."""
    if not 0 <= skew <= 2:
        raise TrigraphError(f"--skew is {skew}; it must be from 0 to 2")


def chances(experts: int, chosen: int, skew: float) -> NDArray[np.float64]:
    """The chance of each expert to be one of the `chosen` ones of a token: the r-th as often as r ** -skew."""
    weights = np.arange(1, experts + 1) ** -float(skew)
    low, high = 0.0, chosen / weights.min()
    for _ in range(60):  # what makes `chosen` of them, where none may have more than _MOST
        middle = (low + high) / 2
        enough = np.minimum(middle * weights, _MOST).sum() >= min(chosen, _MOST * experts)
        low, high = (low, middle) if enough else (middle, high)
    return np.asarray(np.minimum(high * weights, _MOST))


def row_scales(experts: int, chosen: int, skew: float) -> NDArray[np.float64]:
    """Factors of a router's rows, of mean square 1: `chosen` experts a token, the r-th as often as r ** -skew.

    A row's products with tokens are normal: it is chosen when its own exceeds about the same threshold as others must.
    """
    normal = NormalDist()
    scales = np.array([1 / normal.inv_cdf(1 - chance) for chance in chances(experts, chosen, skew).tolist()])
    return np.asarray(scales / np.sqrt(np.mean(scales**2)))
