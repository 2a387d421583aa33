"""A constraint whose answer takes long holds up its own request and no other."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from support.fakes.engine import GREEDY, assert_settled, engine_of, scripted
from support.fakes.model import History, chaotic
from support.texts.constraints import accepts
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Grammar, Options, Regex, Sampling
from trigraph.runtime.sampling import guidance
from trigraph.runtime.sampling import guide as guides
from trigraph.runtime.sampling.guide import Guide, LateError

pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")

AMBIGUOUS = 'start: s\ns: s s s | s s | "" | /[^x]/'
SAMPLED = Options(Sampling(temperature=0.9, top_k=0, seed=3), 12, constraint=Regex("[b-y]{12}"))


def engine() -> Engine:
    return engine_of(chaotic(258))[0]


class Held:
    """Masks that are computed when a test lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.asked = threading.Event(), threading.Event()
        compute = Guide._compute

        def held(guide: Guide) -> object:
            self.asked.set()
            assert self.free.wait(60)
            return compute(guide)

        monkeypatch.setattr(Guide, "_compute", held)


def test_others_go_on_while_a_mask_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = engine().generate([1, 2], SAMPLED).run()
    model = engine()
    constrained = model.generate([1, 2], SAMPLED)  # with its first mask
    held = Held(monkeypatch)
    constrained.begin()
    assert held.asked.wait(60)
    plain = [model.generate([3, n], Options(GREEDY, 20)) for n in range(6)]
    for request in plain:
        request.run()
    assert not constrained.done and len(constrained.ids) < 12
    held.free.set()
    assert constrained.result(60) == alone, "what a late mask changed was not only when"
    assert_settled(model)


def test_a_late_request_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = engine()
    constrained = model.generate([1, 2], SAMPLED)
    held = Held(monkeypatch)
    constrained.begin()
    assert held.asked.wait(60)
    constrained.cancel()
    constrained.result(60)
    assert constrained.finish_reason == "cancelled"
    held.free.set()
    assert_settled(model)


def test_the_answer_of_a_late_guide_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = engine().model.guide(Regex("[ab]x"))
    guide.advance(ord("a"))
    guide = engine().model.guide(Regex("[ab][cd]"))
    held = Held(monkeypatch)
    guide.advance(ord("a"))
    with pytest.raises(LateError):
        guide.allowed()
    with pytest.raises(LateError):
        guide.allows(ord("c"))
    assert not guide.ready
    held.free.set()
    guides.wait_for_any([guide], 60)
    assert guide.ready and guide.allowed().tolist() == [ord("c"), ord("d")]
    assert guide.allows(ord("c")) and not guide.allows(ord("a"))


def test_the_end_is_known_while_a_mask_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads cannot use a matcher at once."""
    guide = engine().model.guide(Regex("[ab][cd]"))
    monkeypatch.setattr(guides, "_SLOW", -1.0)
    held = Held(monkeypatch)
    guide.advance(ord("a"))
    assert not guide.ready
    with monkeypatch.context() as taken:
        taken.setattr(guide, "_matcher", None)
        assert not guide.finished
    held.free.set()
    guide.advance(ord("c"))
    assert guide.finished


def test_slow_questions_about_single_tokens_are_not_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = engine().generate([1, 2], SAMPLED).run()
    monkeypatch.setattr(guides, "_SLOW", -1.0)
    monkeypatch.setattr(Guide, "allows", lambda self, token: pytest.fail("a single token was asked about"))
    assert engine().generate([1, 2], SAMPLED).run() == quick


def test_a_completion_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    model = engine()
    request = model.generate([1, 2], SAMPLED)
    other = model.generate([1, 2], Options(GREEDY, 9))
    monkeypatch.setattr(guides, "_PER_TOKEN", -1.0)
    with pytest.raises(TrigraphError, match=r"the regular expression takes too long to follow: .* make it simpler"):
        request.run()
    assert len(other.run()) == 9
    assert_settled(model)


@pytest.mark.slow
def test_an_ambiguous_grammar_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """One mask of it takes 420 ms with a real vocabulary and llguidance's own limits, and 12 with these."""
    limits = guidance.limits()
    assert limits.step_max_items <= 10_000 and limits.max_items_in_row <= 2000
    monkeypatch.setattr(guides, "_FREE", 0.5)
    guide = engine().model.guide(Grammar(AMBIGUOUS))
    with pytest.raises(TrigraphError, match=r"Too many items|max is 1000|takes too long to follow"):
        for _ in range(2000):
            guide.start()
            guides.wait_for_any([guide], 60)
            guide.allowed()
            guide.advance(ord("a"))


def test_a_first_token_is_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row would be lost: prefill makes it once."""
    monkeypatch.setattr(guides, "_PATIENCE", 0.0)

    def logits(history: History) -> np.ndarray:
        return scripted(b"z", 2)(history)

    model, fake = engine_of(logits)
    request = model.generate(
        [1, 2], Options(Sampling(temperature=1.0, top_k=0, seed=1), 5, constraint=Regex("[a-f]{5}"))
    )
    text = request.run()
    assert accepts(model.model.guide(Regex("[a-f]{5}")), text)
    assert [graph for graph, _ in fake.runs].count("prefill") == 1
