"""What engines did under loads of requests: figures of one engine with so many requests in flight."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from trigraph.runtime.bench.load import ServedLoad


@dataclass(frozen=True)
class RequestResult:
    """Figures of the loads that one engine served. Its fields are keys of `bench --json`."""

    engine: str
    concurrency: int
    """Requests in flight."""
    requests: int
    """In each load."""
    tokens_per_s: float
    """Completion tokens over wall time, prompts included: the median over the loads."""
    min_tokens_per_s: float
    max_tokens_per_s: float
    first_token_ms: float
    """From the submission of a request to its first token: the median over the requests."""
    first_token_p95_ms: float
    between_ms: float
    """Between arrivals of tokens at one client: the median over all of them."""
    between_p95_ms: float
    reused: int
    """Tokens of prompts that were not computed again, of all loads."""
    drafted: int
    accepted: int
    sequences_per_round: float | None
    """Mean number of requests that shared a round; None where the engine does not tell."""
    rows_per_round: float | None
    """Mean number of tokens that a round verified."""
    peak_memory: int | None
    """Bytes of the engine's process so far."""
    faster: Ratio | None = None
    """How many times as fast as this engine ours is; None for ours."""
    floor_ms: float | None = None
    """The roofline of a round with so many rows and sequences."""
    roofline: float | None = None
    """Fraction of it that was reached: floor over the median time between tokens."""


class Ratio(NamedTuple):
    """A ratio of medians, and the range of the ratios of single loads."""

    median: float
    least: float
    most: float


def summary(
    engine: str, concurrency: int, loads: Sequence[ServedLoad], ours: Sequence[ServedLoad] | None = None
) -> RequestResult:
    """The figures of one engine's loads. `ours`: our own engine's, which took turns with these."""
    served = [served for load in loads for served in load.served]
    rates = [load.tokens_per_s for load in loads]
    first = [request.first_token for request in served]
    gaps = [gap for request in served for gap in request.gaps] or [0.0]
    drafted = sum(request.drafted for request in served)
    rounds = sum(request.rounds for request in served)
    shares = sum(len(request.gaps) for request in served)
    memory = [load.peak_memory for load in loads if load.peak_memory is not None]
    return RequestResult(
        engine=engine,
        concurrency=concurrency,
        requests=len(loads[0].served),
        tokens_per_s=statistics.median(rates),
        min_tokens_per_s=min(rates),
        max_tokens_per_s=max(rates),
        first_token_ms=1e3 * statistics.median(first),
        first_token_p95_ms=1e3 * percentile(first, 95),
        between_ms=1e3 * statistics.median(gaps),
        between_p95_ms=1e3 * percentile(gaps, 95),
        reused=sum(request.reused for request in served),
        drafted=drafted,
        accepted=sum(request.accepted for request in served),
        sequences_per_round=shares / rounds if rounds else None,
        rows_per_round=(shares + drafted) / rounds if rounds else None,
        peak_memory=max(memory, default=None),
        faster=None if ours is None else ratio([load.tokens_per_s for load in ours], rates),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that at least `percent` of a hundred values do not exceed (the nearest-rank definition)."""
    return sorted(values)[max(1, ceil(len(values) * percent / 100)) - 1]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The ratio of the medians; its range is that of the ratios of values that were taken beside each other."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(ours) / statistics.median(theirs), min(ratios), max(ratios))
