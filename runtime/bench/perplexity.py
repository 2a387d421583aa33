"""How well a model predicts a text, counted as llama.cpp's `perplexity` does.

The text's tokens are cut into windows of equal length, computed apart from each other; a rest too short for one is left
out. In each window the tokens of the second half count: those that are predicted from half a window at least.
"""

from __future__ import annotations

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

PARALLEL = 4
"""Windows that share a step; an engine to measure with is loaded for so many sequences."""

Show = Callable[[int, int, float], None]
"""Sees how many windows of how many are done, and the perplexity so far."""


@dataclass(frozen=True)
class Divergence:
    """How far a model's next-token distributions are from a reference's, over the tokens that count.

    Kullback-Leibler divergence D(reference || model) in nats.
    """

    mean: float
    median: float
    max: float
    same_top: float
    """Fraction of the tokens for which both hold the same one the most likely."""
    reference_surprise: float
    """The reference's own mean surprise, in nats."""


@dataclass(frozen=True)
class Score:
    """A model's surprise at a text: minus the mean log-likelihood of the `counted` tokens, in nats a token."""

    windows: int
    context: int
    """Tokens in a window."""
    counted: int
    surprise: float
    surprise_error: float
    """Standard error of the mean, as if the tokens were independent."""
    seconds: float
    """Of the model's steps over all tokens of the windows."""
    divergence: Divergence | None = None

    @property
    def perplexity(self) -> float:
        """exp(surprise)."""
        return float(np.exp(self.surprise))

    @property
    def perplexity_error(self) -> float:
        """Standard error of the perplexity, to first order."""
        return self.perplexity * self.surprise_error

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.windows * self.context / self.seconds

    def lines(self) -> Iterator[str]:
        """For people."""
        yield (
            f"perplexity {self.perplexity:.4f} +/- {self.perplexity_error:.4f} | surprise {self.surprise:.5f} +/- "
            f"{self.surprise_error:.5f} nats a token | {self.counted} tokens counted, the second halves of "
            f"{self.windows} windows of {self.context} | {self.rate:.1f} tokens/s"
        )
        if self.divergence is not None:
            yield (
                f"divergence from the reference: mean {self.divergence.mean:.3e}, median "
                f"{self.divergence.median:.3e}, max {self.divergence.max:.3e} nats | same most likely token "
                f"{self.divergence.same_top:.2%} | surprise of the reference {self.divergence.reference_surprise:.5f}"
            )

    def as_json(self) -> dict[str, Any]:
        """All fields and what follows from them, for scripts."""
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
    """Scores `text` in windows of `context` tokens, the first `windows` of them if given.

    A text of fewer tokens is one window. `reference` is a model of the same vocabulary to compare with. Both engines
    must be loaded with PARALLEL sequences. Raises TrigraphError for too short a text or different vocabularies.
    """
    if reference is not None and reference.tokenizer.as_json() != engine.tokenizer.as_json():
        raise TrigraphError("the two models have different vocabularies; compare models with the same tokenizer")
    parts = _windows(engine, text, context)[:windows]
    counted = len(parts[0]) - len(parts[0]) // 2 - 1
    values, seconds = np.empty(0), 0.0
    comparison = _Comparison()
    others = repeat(None) if reference is None else _rows(reference.steps, parts)
    for rows, expected in zip(_rows(engine.steps, parts), others, strict=reference is not None):
        seconds += rows.seconds
        values = np.concatenate([values, rows.surprise()])
        if expected is not None:
            comparison.add(expected, rows)
        show(len(values) // counted, len(parts), float(np.exp(values.mean())))
    return Score(
        windows=len(parts),
        context=len(parts[0]),
        counted=len(values),
        surprise=float(values.mean()),
        surprise_error=float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan"),
        seconds=seconds,
        divergence=None if reference is None else comparison.divergence(),
    )


def _windows(engine: Engine, text: str, context: int) -> list[list[int]]:
    ids = engine.tokenizer.encode(text)
    size = min(context, len(ids))
    if size < 3:
        raise TrigraphError(f"windows of {size} tokens are too short; give 3 or more, and a text of so many")
    windows = [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
    bos = engine.tokenizer.bos_id
    return windows if bos is None else [[bos, *window[1:]] for window in windows]


@dataclass(frozen=True)
class _Rows:
    """What a step says of some of the tokens that count."""

    logits: NDArray[np.float32]  # [rows, vocabulary], a view until the next step
    following: NDArray[np.int64]  # [rows], the tokens themselves
    seconds: float  # that it took since the step before

    def surprise(self) -> NDArray[np.float64]:
        """-log softmax(logits)[following], row by row."""
        largest = self.logits.max(-1, keepdims=True)
        totals = np.exp(self.logits - largest).sum(-1, dtype=np.float64)
        chosen = self.logits[np.arange(len(self.following)), self.following].astype(np.float64)
        surprise: NDArray[np.float64] = np.log(totals) + largest[:, 0] - chosen
        return surprise


def _rows(steps: Steps, windows: Sequence[list[int]]) -> Iterator[_Rows]:
    size = len(windows[0])
    for first in range(0, len(windows), PARALLEL):
        group = windows[first : first + PARALLEL]
        started = time.perf_counter()
        sequences = [steps.new_sequence() for _ in group]
        # Nothing is asked of the first half: a prefill computes it faster.
        steps.prefill(sequences, [window[: size // 2] for window in group])
        for start in range(size // 2, size - 1, steps.max_pending):
            stop = min(start + steps.max_pending, size - 1)
            step = steps.verify(sequences, [window[start:stop] for window in group])
            for sequence in sequences:
                steps.accept(sequence, stop - start)
            following = np.array([window[start + 1 : stop + 1] for window in group]).reshape(-1)
            yield _Rows(step.logits, following, time.perf_counter() - started)
            started = time.perf_counter()
        for sequence in sequences:
            steps.release(sequence)


class _Comparison:
    """Collects what a Divergence is made of."""

    def __init__(self) -> None:
        self._divergences: list[float] = []
        self._same: list[bool] = []
        self._surprises: list[float] = []

    def add(self, expected: _Rows, rows: _Rows) -> None:
        """Takes what the reference and the model say of the same tokens."""
        self._surprises.extend(expected.surprise())
        for theirs, ours in zip(expected.logits, rows.logits, strict=True):
            p, q = _log_probabilities(theirs), _log_probabilities(ours)
            self._divergences.append(float(np.exp(p) @ (p - q)))
            self._same.append(bool(theirs.argmax() == ours.argmax()))

    def divergence(self) -> Divergence:
        """Of all rows so far."""
        return Divergence(
            mean=float(np.mean(self._divergences)),
            median=float(np.median(self._divergences)),
            max=max(self._divergences),
            same_top=float(np.mean(self._same)),
            reference_surprise=float(np.mean(self._surprises)),
        )


def _log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted
