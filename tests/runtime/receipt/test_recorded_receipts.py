"""What no version may change within a contract version: recorded hashes, and texts with their logits."""

from __future__ import annotations

import pytest

from support.record_receipts import RECORDED, SAMPLINGS
from trigraph.exporter.package.manifest import CONTRACT_VERSION, IMAGE_CONTRACT_VERSION, STREAMS_CONTRACT_VERSION
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Receipt, load
from trigraph.runtime.doctor.examine import recorded_bits, recorded_image_bits, recorded_streams_bits, short_hash

HASHES = {3: "d7c9611a9b4f9a10", 6: "e20d2fb7deff036d"}
"""By contract version, the hash that `trigraph doctor` prints. Lines are added, not changed."""
IMAGE_HASHES = {4: "8e0f84125c568f3d", 7: "5a7d50af57cca07f"}
"""The same of images."""
STREAMS_HASHES = {8: "9f5a0e9501ef9941"}
"""The same of residual streams."""


def test_the_recorded_hashes_are_those_of_the_contract_versions() -> None:
    assert short_hash(recorded_bits()) == HASHES[CONTRACT_VERSION]
    assert short_hash(recorded_image_bits()) == IMAGE_HASHES[IMAGE_CONTRACT_VERSION]
    assert short_hash(recorded_streams_bits()) == STREAMS_HASHES[STREAMS_CONTRACT_VERSION]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_recorded_completions_verify(name: str, isa: str) -> None:
    receipt = Receipt.read(RECORDED / f"contract-{CONTRACT_VERSION}-{name}.json")
    assert len(receipt.completion) == 64
    engine = load(TINY_GGUF, threads=1, device="cuda" if isa == "cuda" else "cpu")
    verdict = engine.verify(receipt)
    assert verdict.equal, verdict
