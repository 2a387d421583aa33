"""Batches with drafts of a chosen acceptance: draft lengths against each other."""

from pathlib import Path

import pytest

from draft_sweep import Decoded, bench_drafts
from draft_sweep import results as draft_results
from support.models.packages import Packages
from trigraph.runtime.bench import RequestOptions


@pytest.mark.slow
def test_a_run_with_drafts_of_a_chosen_acceptance(packages: Packages, operator_library: Path) -> None:
    options = RequestOptions(4, (2,), 12, 9, repetitions=1, accept=1, draft_tokens=(3,))
    report = bench_drafts(packages("tiny-moe", "F32"), options)
    kinds = {result.drafts: result for result in report.results}
    assert list(kinds) == ["governor", "0", "3"]
    # Four completions of nine tokens, of which the prompt brings the first: two rounds of four each.
    assert (kinds["3"].drafted, kinds["3"].accepted, kinds["3"].rows_per_round) == (24, 24, 8.0)
    assert (kinds["0"].drafted, kinds["0"].rows_per_round, kinds["0"].beside_plain) == (0, 2.0, (1, 1, 1))
    assert "by best" in [str(column.header) for column in report.table().columns]


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
