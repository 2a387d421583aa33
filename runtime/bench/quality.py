"""What int8 activations cost: how far the next-token distributions of a text are from those of float32 activations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trigraph.exporter import ExportOptions
from trigraph.runtime.loading import cached_package, load
from trigraph.runtime.steps import Steps


@dataclass(frozen=True)
class Quality:
    """Kullback-Leibler divergence in nats, float32 activations against int8, over the positions of a text."""

    positions: int
    mean_divergence: float
    median_divergence: float
    max_divergence: float
    same_top: float
    """Fraction of positions at which both have the same most likely token."""
    mean_surprise: float
    """Of the text's own tokens, in nats, with float32 activations."""
    mean_surprise_int8: float

    def line(self) -> str:
        """One line for people."""
        return (
            f"int8 against float32 activations, {self.positions} positions: divergence mean "
            f"{self.mean_divergence:.2e}, median {self.median_divergence:.2e}, max {self.max_divergence:.2e} nats; "
            f"same most likely token {self.same_top:.1%}; surprise {self.mean_surprise:.4f} and "
            f"{self.mean_surprise_int8:.4f} nats a token"
        )


def activation_quality(model: Path, tokens: Sequence[int] | str, threads: int) -> Quality:
    """Runs a text through packages of both kinds, exported to the cache. `tokens` may be ids or text."""
    engines = [
        load(cached_package(model, ExportOptions(activations=kind)), threads=threads, speculation=False)
        for kind in ("float32", "int8")
    ]
    ids = engines[0].tokenizer.encode(tokens) if isinstance(tokens, str) else list(tokens)
    ids = ids[: engines[0].context]
    divergence, same, surprise = [], [], []
    pairs = zip(*(_log_probabilities(engine.steps, ids) for engine in engines), strict=True)
    for following, (exact, rounded) in zip([*ids[1:], None], pairs, strict=True):
        divergence.append(float(np.exp(exact) @ (exact - rounded)))
        same.append(exact.argmax() == rounded.argmax())
        if following is not None:
            surprise.append((-exact[following], -rounded[following]))
    mean_surprise, mean_surprise_int8 = np.mean(surprise, axis=0).tolist()
    return Quality(
        positions=len(ids),
        mean_divergence=float(np.mean(divergence)),
        median_divergence=float(np.median(divergence)),
        max_divergence=max(divergence),
        same_top=float(np.mean(same)),
        mean_surprise=mean_surprise,
        mean_surprise_int8=mean_surprise_int8,
    )


def _log_probabilities(steps: Steps, ids: Sequence[int]) -> Iterator[NDArray[np.float64]]:
    """Of the token after each one of `ids`."""
    sequence = steps.new_sequence()
    for start in range(0, len(ids), steps.max_pending):
        piece = list(ids[start : start + steps.max_pending])
        logits = steps.verify([sequence], [piece]).logits.astype(np.float64)
        steps.accept(sequence, len(piece))
        logits -= logits.max(-1, keepdims=True)
        yield from logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    steps.release(sequence)
