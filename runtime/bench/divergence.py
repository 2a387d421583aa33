"""How far the predictions of a model are from those of a reference: the figures of llama.cpp's `--kl-divergence`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.requests.logprobs import log_of_sum
from trigraph.runtime.sampling.draws import exp

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Divergence:
    """A model beside its reference. Errors are standard errors of a mean, as if the tokens were independent.

    `mean` to `max` are of the Kullback-Leibler divergence D(reference || model) of the next-token distributions, in
    nats per counted token. An error is None where one token was counted.
    """

    mean: float
    mean_error: float | None
    median: float
    p99: float
    p999: float
    """99.9 % of the tokens have this divergence or less."""
    max: float
    same_top: float
    """Fraction of the tokens for which both models agree on the most likely one."""
    same_top_error: float | None
    reference_nll: float
    """The reference's own mean negative log-likelihood, in nats."""
    log_ratio: float
    """Ln of the model's perplexity divided by the reference's."""
    log_ratio_error: float | None
    ratio: float
    ratio_error: float | None
    rms_change: float
    """Root mean square of the change of the probability of the token that followed."""
    rms_change_error: float | None

    def lines(self) -> Iterator[str]:
        """The figures for people."""
        yield (
            f"KL divergence from the reference: mean {self.mean:.3e}{margin(self.mean_error, '.1e')}, median "
            f"{self.median:.3e}, 99 % {self.p99:.3e}, 99.9 % {self.p999:.3e}, max {self.max:.3e} nats"
        )
        yield (
            f"same most likely token {self.same_top:.2%}{margin(self.same_top_error, '.2%')} | RMS change of the "
            f"token's probability {self.rms_change:.3%}{margin(self.rms_change_error, '.3%')}"
        )
        yield (
            f"NLL of the reference {self.reference_nll:.5f} | ln of the ratio of perplexities {self.log_ratio:.6f}"
            f"{margin(self.log_ratio_error, '.6f')} | ratio {self.ratio:.6f}{margin(self.ratio_error, '.6f')}"
        )


class Comparison:
    """Collects the terms of a Divergence."""

    def __init__(self, floor: float = -math.inf) -> None:
        """`floor`: tokens that the reference gives this log-probability or less have no part in a divergence."""
        self._floor = floor
        self._divergences: list[float] = []
        self._same: list[bool] = []
        self._nlls: list[tuple[float, float]] = []

    def add(self, p: Floats, q: Floats, token: int) -> None:
        """Adds the log-probabilities of the reference and of the model in the place of `token`."""
        with np.errstate(invalid="ignore"):  # of what lies below the floor
            terms = np.where(p > self._floor, exp(p) * (p - q), 0)
        self._divergences.append(float(terms.cumsum()[-1]))
        self._same.append(bool(p.argmax() == q.argmax()))
        self._nlls.append((-float(p[token]), -float(q[token])))

    def divergence(self) -> Divergence:
        """The figures over all tokens so far."""
        ordered = sorted(self._divergences)
        changes = [_e(-ours) - _e(-theirs) for theirs, ours in self._nlls]
        squares = [change * change for change in changes]
        rms, squares_error = math.sqrt(mean(squares)), mean_error(squares)
        log_ratios = [ours - theirs for theirs, ours in self._nlls]
        log_ratio, log_ratio_error = mean(log_ratios), mean_error(log_ratios)
        ratio = _e(log_ratio)
        return Divergence(
            mean=mean(self._divergences),
            mean_error=mean_error(self._divergences),
            median=_quantile(ordered, 0.5),
            p99=_quantile(ordered, 0.99),
            p999=_quantile(ordered, 0.999),
            max=ordered[-1],
            same_top=mean(self._same),
            same_top_error=mean_error(self._same),
            reference_nll=mean([theirs for theirs, _ in self._nlls]),
            log_ratio=log_ratio,
            log_ratio_error=log_ratio_error,
            ratio=ratio,
            ratio_error=None if log_ratio_error is None else ratio * log_ratio_error,
            rms_change=rms,
            rms_change_error=None if squares_error is None else squares_error / (2 * rms) if rms else 0.0,
        )


def log_probabilities(logits: NDArray[np.float32]) -> Floats:
    """Ln of the softmax of one row of logits [vocabulary]; the same bits on every machine."""
    return logits.astype(np.float64) - log_of_sum(logits)


def perplexity_of(nll: float) -> float:
    """e^nll, the same bits on every machine; infinite for a token of no chance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(1 / exp(np.array(-nll)))


def mean(values: Sequence[float]) -> float:
    """The mean, of a sum that is rounded once."""
    return math.fsum(values) / len(values)


def mean_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None of one value."""
    middle, count = mean(values), len(values)
    squares = math.fsum((value - middle) ** 2 for value in values)
    return math.sqrt(squares / (count - 1) / count) if count > 1 else None


def margin(error: float | None, form: str) -> str:
    """How a standard error stands behind its figure; nothing where there is none."""
    return "" if error is None else f" +/- {error:{form}}"


def _e(x: float) -> float:
    """e^x, the same bits on every machine; the plain series is for x <= 0."""
    return perplexity_of(x) if x > 0 else float(exp(np.array(x)))


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Between the two values nearest to a fraction of the way, in proportion."""
    place = fraction * (len(ordered) - 1)
    low = int(place)
    rest = place - low
    return (1 - rest) * ordered[low] + rest * ordered[min(low + 1, len(ordered) - 1)]
