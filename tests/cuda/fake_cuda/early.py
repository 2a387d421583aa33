"""Steps of one and two rows, whose launches may begin early, with the CPU's bits: what `make early` looks at."""

from __future__ import annotations

from typing import Any

import pytest

from support.models.packages import Packages
from support.requests.promise import draft_chains, row_bits
from trigraph.runtime import Engine, load


def rows(engine: Engine, count: int) -> list[object]:
    """Of so many texts: prefills, verifies with and without tokens to commit, and drafts. Each shape comes twice."""
    steps = engine.steps
    sequences = [steps.new_sequence() for _ in range(count)]
    found: list[object] = [row_bits(steps.prefill(sequences, [[3 + i] for i in range(count)]))]
    for new in ([4], [5], [6, 7][: 3 - count], [8, 9][: 3 - count], [1], [2]):
        found.append(row_bits(steps.verify(sequences, [new] * count)))
        for sequence in sequences:
            steps.keep(sequence, 1)
        found.append(draft_chains(engine, sequences, [11] * count))
    return found


@pytest.mark.parametrize(
    ("geometry", "options"),
    [
        ("tiny-moe", {}),
        ("tiny-moe", {"activations": "float32"}),
        ("tiny-dense", {"kv_type": "q8_0"}),
        ("tiny-next", {}),
        ("tiny-streams", {}),
        ("tiny-moe", {"drafter": "dflash2"}),
    ],
)
def test_steps_of_few_rows(packages: Packages, geometry: str, options: dict[str, Any]) -> None:
    package = packages(geometry, "Q4_K_M", **options)
    found, expected = (load(package, device=device, context=64, sequences=3) for device in ("cuda", "cpu"))
    for count in (1, 2):
        assert rows(found, count) == rows(expected, count)
