"""How well a model predicts a text, measured as llama.cpp's `perplexity` does.

The tokens of the text are cut into independent windows of equal length; a shorter rest is left out. The second half of
each window counts: tokens that are predicted from at least half a window. All figures but times are the same on every
machine, to the bit: e^x and ln are our own, and no sum leaves its order to NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.divergence import (
    Comparison,
    Divergence,
    Floats,
    log_probabilities,
    margin,
    mean,
    mean_error,
    perplexity_of,
)
from trigraph.runtime.bench.saved_logits import FLOOR, SavedLogits, logits_writer
from trigraph.runtime.engine.engine import Engine
from trigraph.runtime.execution.steps import Steps

PARALLEL = 4
"""Windows that share a step; engines must be loaded with this many sequences."""

Show = Callable[[int, int, float], None]
"""Called with the windows done, their total, and the perplexity so far."""


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
        return perplexity_of(self.nll)

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
            f"perplexity {self.perplexity:.4f}{margin(self.perplexity_error, '.4f')} | NLL {self.nll:.5f}"
            f"{margin(self.nll_error, '.5f')} nats per token | {self.counted} tokens counted, in the second halves of "
            f"{self.windows} {noun} of {self.context} | {self.rate:.1f} tokens/s"
        )
        if self.divergence is not None:
            yield from self.divergence.lines()

    def as_json(self) -> dict[str, Any]:
        """All fields and derived figures, for scripts."""
        derived = {name: getattr(self, name) for name in ("perplexity", "perplexity_error", "rate")}
        return asdict(self) | derived


def score(
    engine: Engine,
    text: str | None,
    context: int,
    windows: int | None = None,
    reference: Engine | SavedLogits | None = None,
    save: Path | None = None,
    show: Show = lambda done, total, perplexity: None,
) -> Score:
    """Scores `text` in windows of `context` tokens: all of them, or the first `windows`.

    A shorter text is one window. `reference` is a model with the same vocabulary to compare with, or a file of its
    logits, whose windows are then those that count: without `text`. `save` is a file for the logits of `engine`.
    Engines must be loaded with PARALLEL sequences. Raises TrigraphError when the text is too short or the vocabularies
    differ.
    """
    parts = _windows(engine, text, context, reference)[:windows]
    counted = len(parts[0]) - len(parts[0]) // 2 - 1
    values: list[float] = []
    seconds = 0.0
    comparison = Comparison(FLOOR) if isinstance(reference, SavedLogits) else Comparison()
    expected = None if reference is None else _expected(reference, parts)
    with nullcontext() if save is None else logits_writer(save, parts, engine.vocab) as writer:
        for step in predictions(engine.steps, parts):
            seconds += step.seconds
            for (window, place), logits in zip(step.places, step.logits, strict=True):
                token, ours = parts[window][place + 1], log_probabilities(logits)
                values.append(-float(ours[token]))
                if expected is not None:
                    comparison.add(expected(window, place), ours, token)
                if writer is not None:
                    writer.write(window, place, logits)
            show(len(values) // counted, len(parts), perplexity_of(mean(values)))
    return Score(
        windows=len(parts),
        context=len(parts[0]),
        counted=len(values),
        nll=mean(values),
        nll_error=mean_error(values),
        seconds=seconds,
        divergence=None if reference is None else comparison.divergence(),
    )


def _windows(engine: Engine, text: str | None, context: int, reference: Engine | SavedLogits | None) -> list[list[int]]:
    """The tokens that are scored; the first one of each gives way to the model's start token, if it has one."""
    if isinstance(reference, SavedLogits):
        reference.check(engine.vocab)
        windows = reference.tokens
    else:
        if reference is not None and reference.tokenizer.as_json() != engine.tokenizer.as_json():
            raise TrigraphError("the two models have different vocabularies; compare models with the same tokenizer")
        ids = engine.tokenizer.encode(text or "")
        size = min(context, len(ids))
        if size < 3:
            raise TrigraphError(
                f"a window of {size} tokens is too short; it takes a text, and a context, of 3 tokens or more"
            )
        windows = [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
    bos = engine.tokenizer.bos_id
    return windows if bos is None else [[bos, *window[1:]] for window in windows]


def _expected(reference: Engine | SavedLogits, windows: Sequence[list[int]]) -> Callable[[int, int], Floats]:
    """The reference's log-probabilities behind a token of a window, asked for in the order of `predictions`."""
    if isinstance(reference, SavedLogits):
        return reference.row
    rows = (logits for step in predictions(reference.steps, windows) for logits in step.logits)
    return lambda window, place: log_probabilities(next(rows))


@dataclass(frozen=True)
class Predictions:
    """What a step predicts behind some of the tokens that count."""

    places: list[tuple[int, int]]  # of the rows: a window, and a token in it
    logits: NDArray[np.float32]  # [rows, vocabulary], a view until the next step
    seconds: float  # since the step before


def predictions(steps: Steps, windows: Sequence[list[int]]) -> Iterator[Predictions]:
    """The second halves of windows of equal length, PARALLEL at a time."""
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
            places = [(first + index, place) for index in range(len(group)) for place in range(start, stop)]
            yield Predictions(places, step.logits, time.perf_counter() - started)
            started = time.perf_counter()
        for sequence in sequences:
            steps.release(sequence)
