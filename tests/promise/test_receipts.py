"""Completions verify, and score to the log-probabilities that sampling saw, on every instruction set.

They are sampled, constrained, drafted and penalised at random, and made alone, together, preempted, and by replicas
that are lost. TRIGRAPH_RECEIPTS sets how many each model makes.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from support.models.packages import Packages
from support.requests.random_requests import MODELS, folder, requests_of
from support.requests.receipted import CONTEXT, Made, completions
from trigraph.runtime import load

COUNT = int(os.environ.get("TRIGRAPH_RECEIPTS", "40"))

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.server.cluster.remote_engine._FIRST_PAUSE", 0.0)
    monkeypatch.setattr("trigraph.runtime.server.cluster.replica._GAP", 0.0)


@functools.cache
def made(package: Path, model: tuple[str, ...]) -> list[Made]:
    """The completions of a model, on the best instruction set of the processor."""
    vocab = load(package, threads=1, context=CONTEXT).vocab
    chosen = os.environ.pop("TRIGRAPH_ISA", None)
    try:
        return [*completions(package, requests_of(vocab, COUNT, seed=len(model[0])))]
    finally:
        if chosen is not None:
            os.environ["TRIGRAPH_ISA"] = chosen


def some(package: Path, model: tuple[str, ...], isa: str) -> list[Made]:
    """Every fourth of them for the portable kernels, which are slow."""
    return made(package, model)[:: 4 if isa == "portable" else 1]


@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_completions_verify(model: tuple[str, ...], packages: Packages, isa: str) -> None:
    package = folder(packages, model)
    device = "cuda" if isa == "cuda" else "cpu"
    engine = load(package, threads=1, context=CONTEXT, speculation=False, max_pending=32, device=device)
    verdicts = [engine.verify(one.receipt) for one in some(package, model, isa)]
    assert len(verdicts) > COUNT // 5 and all(verdict.equal for verdict in verdicts)
    assert sum(verdict.tokens for verdict in verdicts) > 5 * len(verdicts)


@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_completions_score_what_sampling_saw(model: tuple[str, ...], packages: Packages, isa: str) -> None:
    package = folder(packages, model)
    engine = load(package, threads=1, context=CONTEXT, device="cuda" if isa == "cuda" else "cpu")
    scored = 0
    chosen = some(package, model, isa)
    for receipt, logprobs in chosen:
        assert receipt.prompt is not None and len(logprobs) == len(receipt.completion)
        found = engine.score([*receipt.prompt, *receipt.completion], 1)
        assert found[len(receipt.prompt) - 1 :] == logprobs
        scored += len(logprobs)
    assert scored > 5 * len(chosen)
