"""What the statistics of a request say of its drafts."""

import pytest

from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.choice import Candidates
from trigraph.runtime.requests.draft_length import DraftLength
from trigraph.runtime.requests.stats import Round

PLAIN, HEAD, NGRAMS = Candidates(), Candidates([0.5, 0.5]), Candidates([0.5, 0.5], [1, 2])


@pytest.mark.parametrize(
    ("rounds", "report"),
    [
        ([(NGRAMS, 0)], "on, 2.0 drafts a round, all by n-grams"),
        ([(HEAD, 2), (NGRAMS, 0)], "on, 2.0 drafts a round, 50% by n-grams"),
        (
            [(NGRAMS, 0)] + [(PLAIN, 0)] * 20,
            "parked: drafting does not pay, 0 of 2 drafts accepted, all by n-grams, 20",
        ),
        (
            [(HEAD, 1)] + [(PLAIN, 0)] * 20,
            "parked: drafting does not pay, 1 of 2 drafts accepted, 20 of 21 rounds plain",
        ),
    ],
)
def test_the_report(rounds: list[tuple[Candidates, int]], report: str) -> None:
    length = DraftLength(Acceptance(7), 7, ngrams=True)
    for candidates, accepted in rounds:
        drafts = len(candidates.chances)
        length.observe(candidates, drafts, Round([1] * (accepted + 1), drafts, accepted, 0.0, 0.0))
    assert length.report().startswith(report)
