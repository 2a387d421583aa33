"""What no version may change within a contract version: recorded hashes, and texts with their logits."""

from __future__ import annotations

import pytest

from support.requests.record_receipts import RECORDED, SAMPLINGS
from trigraph.exporter.package.manifest import CONTRACT_VERSION
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Receipt, load
from trigraph.runtime.doctor.examine import recorded_bits, short_hash

HASHES = {9: "421121cbc9e420ac"}
"""By contract version, the hash that `trigraph doctor` prints. Lines are added, not changed."""


def test_the_recorded_hashes_are_those_of_the_contract_version() -> None:
    assert short_hash(recorded_bits()) == HASHES[CONTRACT_VERSION]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_recorded_completions_verify(name: str, isa: str) -> None:
    receipt = Receipt.read(RECORDED / f"contract-{CONTRACT_VERSION}-{name}.json")
    assert len(receipt.completion) == 64
    engine = load(TINY_GGUF, threads=1, device="cuda" if isa == "cuda" else "cpu")
    verdict = engine.verify(receipt)
    assert verdict.equal, verdict
