"""Batches with drafts of a chosen acceptance: draft lengths against each other."""

import json
from pathlib import Path

import pytest

from support.command import Run
from support.packages import Packages
from trigraph.runtime.bench.draft_sweep import Decoded
from trigraph.runtime.bench.draft_sweep import results as draft_results


def test_a_run_with_drafts_of_a_chosen_acceptance(trigraph: Run, packages: Packages, operator_library: Path) -> None:
    folder = packages("tiny-moe", "F32")
    command = ["bench", folder, "--requests", 4, "--concurrency", 2, "--accept", 1, "--draft-tokens", "3", "-p", 12]
    result = trigraph(*command, "-n", 9, "-r", 1, "-t", 1, "--json")
    assert result.status == 0, result
    content = json.loads(result.out)
    assert content["accept"] == 1
    kinds = {r["drafts"]: r for r in content["results"]}
    assert list(kinds) == ["governor", "0", "3"]
    # Four completions of nine tokens, of which the prompt brings the first: two rounds of four each.
    assert (kinds["3"]["drafted"], kinds["3"]["accepted"], kinds["3"]["rows_per_round"]) == (24, 24, 8.0)
    assert (kinds["0"]["drafted"], kinds["0"]["rows_per_round"], kinds["0"]["beside_plain"]) == (0, 2.0, [1, 1, 1])
    assert "by best" in trigraph(*command, "-n", 9, "-r", 1, "-t", 1).out


def decoded(seconds: float) -> Decoded:
    return Decoded(seconds, tokens=60, rows=80, rounds=20, drafted=20, accepted=10)


def test_draft_lengths_are_held_against_none_and_the_best() -> None:
    taken = {
        "governor": [decoded(1.0), decoded(3.0), decoded(2.0)],
        "0": [decoded(2.0), decoded(3.0), decoded(3.0)],
        "2": [decoded(1.0), decoded(1.5), decoded(2.5)],
    }
    governor, plain, two = draft_results(4, taken)
    assert (governor.drafts, governor.concurrency) == ("governor", 4)
    assert (governor.tokens_per_s, governor.min_tokens_per_s, governor.max_tokens_per_s) == (30.0, 20.0, 60.0)
    assert governor.rows_per_round == 4.0
    assert governor.beside_plain == pytest.approx((1.5, 1.0, 2.0))
    assert governor.beside_best == pytest.approx((0.75, 0.5, 1.25))  # two drafts, 40 tokens a second
    assert plain.beside_plain == (1, 1, 1)
    assert (two.drafted, two.accepted) == (60, 30)
