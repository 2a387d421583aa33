"""Receipts on the fake device: those of the CPU's completions, and those that the device's completions give the CPU."""

from __future__ import annotations

import os

import pytest

from support.models.packages import Packages
from support.requests.random_requests import requests_of
from support.requests.receipted import SHORT_CONTEXT, completions, shortened
from trigraph.runtime import load

COUNT = int(os.environ.get("TRIGRAPH_RECEIPTS", "8"))


@pytest.mark.parametrize(("makes", "verifies"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_receipts_of_the_other_device_verify(packages: Packages, makes: str, verifies: str) -> None:
    package = packages("tiny-moe", "Q4_K_M")
    engine = load(package, device=verifies, context=SHORT_CONTEXT, max_pending=32)
    asked = [*map(shortened, requests_of(engine.vocab, COUNT, seed=1))]
    made = [*completions(package, asked, makes, context=SHORT_CONTEXT)]
    assert len(made) == COUNT
    for receipt, logprobs in made:
        assert engine.verify(receipt).equal
        assert receipt.prompt is not None
        scored = engine.score([*receipt.prompt, *receipt.completion], 1)
        assert scored[len(receipt.prompt) - 1 :] == logprobs
