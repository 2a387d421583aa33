"""Rounds of a small model are timed when it is loaded, and right drafts counted; nothing else of them is left."""

import pytest

from support.fake_model import FakeModel, chaotic, mostly_right
from support.packages import Packages
from trigraph.runtime import Options, Sampling, load, loading, rehearsal
from trigraph.runtime.drafting.acceptance import Acceptance
from trigraph.runtime.drafting.costs import Costs
from trigraph.runtime.speculation import MTPDrafter


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(rehearsal, "_MOST_SECONDS", 600.0)


def test_few_and_many_drafts_are_timed() -> None:
    logits = chaotic(23)
    steps, costs, acceptance = FakeModel(23, logits, mostly_right(logits)).steps(context=256), Costs(), Acceptance(7)
    unknown = acceptance.head
    rehearsal.rehearse(steps, MTPDrafter(steps), costs, acceptance)
    assert all(costs.verify.timed(rows, 1) for rows in (1, 2, 4, 8))
    assert costs.draft.most_rows > 0
    assert acceptance.head != unknown
    assert steps.state.slots.free == steps.state.slots.size
    assert steps.state.pages.free == steps.state.pages.size


@pytest.mark.parametrize("context", [1, 9, 256])
def test_a_small_model_is_rehearsed_as_far_as_its_context_holds(packages: Packages, context: int) -> None:
    engine = load(packages("trained", "Q8_0"), context=context, threads=1)
    assert engine.costs.verify.timed(8, 1) == (context == 256)
    assert engine.steps.state.pages.free == engine.steps.state.pages.size


def test_large_models_and_those_that_cannot_draft_are_not_run(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not load(packages("trained", "Q8_0"), context=256, speculation=False).costs.verify.most_rows
    monkeypatch.setattr(loading, "SMALL_BYTES", 1 << 20)
    assert not load(packages("trained", "Q8_0"), context=256).costs.verify.most_rows


def test_texts_are_those_without_a_rehearsal(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(Sampling(seed=7), max_tokens=24, ignore_eos=True)
    rehearsed = load(packages("trained", "Q8_0"), context=256).generate("And", options).run()
    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    assert load(packages("trained", "Q8_0"), context=256).generate("And", options).run() == rehearsed
