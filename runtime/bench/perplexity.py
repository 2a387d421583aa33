"""How well a model predicts a text, measured as llama.cpp's `perplexity` does.

The tokens of the text are cut into independent windows of equal length; a shorter rest is left out. The second half of
each window counts: tokens that are predicted from at least half a window. All figures but times are the same on every
machine, to the bit: e^x and ln are our own, and no sum leaves its order to NumPy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.runtime.engine import Engine
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.requests.logprobs import log_of_sum
from trigraph.runtime.sampling.draws import exp

PARALLEL = 4
"""Windows that share a step; engines must be loaded with this many sequences."""

Show = Callable[[int, int, float], None]
"""Called with the windows done, their total, and the perplexity so far."""


@dataclass(frozen=True)
class Divergence:
    """Kullback-Leibler divergence D(reference || model) of the next-token distributions, in nats per counted token."""

    mean: float
    median: float
    max: float
    same_top: float
    """Fraction of the tokens for which both models agree on the most likely one."""
    reference_nll: float
    """The reference's own mean negative log-likelihood, in nats."""


@dataclass(frozen=True)
class Score:
    """A model's mean negative log-likelihood (NLL) of the `counted` tokens, in nats per token."""

    windows: int
    context: int
    """Tokens in a window."""
    counted: int
    nll: float
    nll_error: float | None
    """Standard error of the mean, as if the tokens were independent; None of one token."""
    seconds: float
    """Time of the model's steps over all tokens of the windows."""
    divergence: Divergence | None = None

    @property
    def perplexity(self) -> float:
        """exp(nll)."""
        return _perplexity(self.nll)

    @property
    def perplexity_error(self) -> float | None:
        """Standard error of the perplexity, to first order."""
        return None if self.nll_error is None else self.perplexity * self.nll_error

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.windows * self.context / self.seconds

    def lines(self) -> Iterator[str]:
        """The figures for people."""
        noun = "window" if self.windows == 1 else "windows"
        yield (
            f"perplexity {self.perplexity:.4f}{_margin(self.perplexity_error, 4)} | NLL {self.nll:.5f}"
            f"{_margin(self.nll_error, 5)} nats per token | {self.counted} tokens counted, in the second halves of "
            f"{self.windows} {noun} of {self.context} | {self.rate:.1f} tokens/s"
        )
        if self.divergence is not None:
            yield (
                f"KL divergence from the reference: mean {self.divergence.mean:.3e}, median "
                f"{self.divergence.median:.3e}, max {self.divergence.max:.3e} nats | same most likely token "
                f"{self.divergence.same_top:.2%} | NLL of the reference {self.divergence.reference_nll:.5f}"
            )

    def as_json(self) -> dict[str, Any]:
        """All fields and derived figures, for scripts."""
        derived = {name: getattr(self, name) for name in ("perplexity", "perplexity_error", "rate")}
        return asdict(self) | derived


def score(
    engine: Engine,
    text: str,
    context: int,
    windows: int | None = None,
    reference: Engine | None = None,
    show: Show = lambda done, total, perplexity: None,
) -> Score:
    """Scores `text` in windows of `context` tokens: all of them, or the first `windows`.

    A shorter text is one window. `reference` is a model with the same vocabulary to compare with. Both engines must be
    loaded with PARALLEL sequences. Raises TrigraphError when the text is too short or the vocabularies differ.
    """
    if reference is not None and reference.tokenizer.as_json() != engine.tokenizer.as_json():
        raise TrigraphError("the two models have different vocabularies; compare models with the same tokenizer")
    parts = _windows(engine, text, context)[:windows]
    counted = len(parts[0]) - len(parts[0]) // 2 - 1
    values: list[float] = []
    seconds = 0.0
    comparison = _Comparison()
    others = repeat(None) if reference is None else _rows(reference.steps, parts)
    for rows, expected in zip(_rows(engine.steps, parts), others, strict=reference is not None):
        seconds += rows.seconds
        values += rows.nlls()
        if expected is not None:
            comparison.add(expected, rows)
        show(len(values) // counted, len(parts), _perplexity(_mean(values)))
    return Score(
        windows=len(parts),
        context=len(parts[0]),
        counted=len(values),
        nll=_mean(values),
        nll_error=_mean_error(values),
        seconds=seconds,
        divergence=None if reference is None else comparison.divergence(),
    )


def _windows(engine: Engine, text: str, context: int) -> list[list[int]]:
    ids = engine.tokenizer.encode(text)
    size = min(context, len(ids))
    if size < 3:
        raise TrigraphError(
            f"a window of {size} tokens is too short; it takes a text, and a context, of 3 tokens or more"
        )
    windows = [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
    bos = engine.tokenizer.bos_id
    return windows if bos is None else [[bos, *window[1:]] for window in windows]


@dataclass(frozen=True)
class _Rows:
    """A step's predictions of some of the tokens that count."""

    logits: NDArray[np.float32]  # [rows, vocabulary], a view until the next step
    following: NDArray[np.int64]  # [rows], the tokens that were to be predicted
    seconds: float  # since the step before

    def nlls(self) -> list[float]:
        """-log softmax(logits)[following], row by row."""
        rows = zip(self.logits, self.following.tolist(), strict=True)
        return [log_of_sum(row) - float(row[token]) for row, token in rows]


def _rows(steps: Steps, windows: Sequence[list[int]]) -> Iterator[_Rows]:
    size = len(windows[0])
    for first in range(0, len(windows), PARALLEL):
        group = windows[first : first + PARALLEL]
        started = time.perf_counter()
        sequences = [steps.new_sequence() for _ in group]
        # No logits of the first half are needed: a prefill computes it faster.
        steps.prefill(sequences, [window[: size // 2] for window in group])
        for start in range(size // 2, size - 1, steps.max_pending):
            stop = min(start + steps.max_pending, size - 1)
            step = steps.verify(sequences, [window[start:stop] for window in group])
            for sequence in sequences:
                steps.keep(sequence, stop - start)
            following = np.array([window[start + 1 : stop + 1] for window in group]).reshape(-1)
            yield _Rows(step.logits, following, time.perf_counter() - started)
            started = time.perf_counter()
        for sequence in sequences:
            steps.release(sequence)


class _Comparison:
    """Collects the terms of a Divergence."""

    def __init__(self) -> None:
        self._divergences: list[float] = []
        self._same: list[bool] = []
        self._reference_nlls: list[float] = []

    def add(self, expected: _Rows, rows: _Rows) -> None:
        """Adds the predictions of the reference and of the model for the same tokens."""
        self._reference_nlls += expected.nlls()
        for theirs, ours in zip(expected.logits, rows.logits, strict=True):
            p, q = _log_probabilities(theirs), _log_probabilities(ours)
            self._divergences.append(float((exp(p) * (p - q)).cumsum()[-1]))
            self._same.append(bool(theirs.argmax() == ours.argmax()))

    def divergence(self) -> Divergence:
        """The divergence over all rows so far."""
        return Divergence(
            mean=_mean(self._divergences),
            median=float(np.median(self._divergences)),
            max=max(self._divergences),
            same_top=_mean(self._same),
            reference_nll=_mean(self._reference_nlls),
        )


def _log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    return logits.astype(np.float64) - log_of_sum(logits)


def _perplexity(nll: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):  # infinite for a token of no chance
        return float(1 / exp(np.array(-nll)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _margin(error: float | None, digits: int) -> str:
    return "" if error is None else f" +/- {error:.{digits}f}"


def _mean_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None of one value."""
    mean, count = _mean(values), len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (count - 1) / count) if count > 1 else None
