"""Drafts and their verify as one run: what they are alone, for small models, and for one request with few drafts."""

from dataclasses import replace
from operator import eq

import pytest

from support.packages import Packages
from support.promise import row_bits
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load, loading
from trigraph.runtime.device.device import Drawing
from trigraph.runtime.execution.joined_rounds import JoinedRounds
from trigraph.runtime.execution.results import RoundResult
from trigraph.runtime.sampling.sampling import Sampler
from trigraph.runtime.state.sequence import Sequence

SAMPLED, GREEDY = Sampling(seed=5), Sampling(temperature=0)


@pytest.fixture(scope="module")
def engine(packages: Packages) -> Engine:
    return load(packages("trained", "Q8_0"), context=200, threads=1)


@pytest.fixture
def joined_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the sequences of such rounds."""
    found: list[int] = []
    run = JoinedRounds.run

    def recorded(joined: JoinedRounds, sequence: Sequence, token: int, drafts: int, drawing: Drawing) -> RoundResult:
        found.append(sequence.length)
        return run(joined, sequence, token, drafts, drawing)

    monkeypatch.setattr(JoinedRounds, "run", recorded)
    return found


def chain(engine: Engine, sequence: Sequence, token: int, count: int, sampler: Sampler) -> list[int]:
    """Drafts of the head, a step each."""
    found: list[int] = []
    guess = engine.steps.draft([sequence], [token])
    while True:
        found.append(sampler.guess(guess, 0, sequence.length + 1 + len(found)))
        if len(found) == count:
            return found
        guess = engine.steps.draft_more([sequence], found[-1:], guess.hidden)


@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize("sampling", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_it_gives_what_the_steps_give_one_by_one(engine: Engine, sampling: Sampling, drafts: int) -> None:
    steps, sampler = engine.steps, Sampler(sampling, [])
    one, other = steps.new_sequence(), steps.new_sequence()
    token = int(steps.prefill([one, other], [[3, 1, 4, 1, 5]] * 2).tokens[0])
    kept = []
    for _ in range(40):
        guesses = chain(engine, one, token, drafts, sampler)
        rows = steps.verify([one], [[token, *guesses]])
        plain = row_bits(rows)
        picked = [sampler.pick(rows, i, one.length + 1 + i) for i in range(1 + drafts)]
        joined = steps.draft_and_verify(other, token, drafts, sampling.drawing)
        assert list(joined.drafts) == [guesses]
        assert row_bits(joined.result) == plain
        assert joined.drawn == picked
        kept.append(1 + [*map(eq, picked, guesses), False].index(False))
        for sequence in (one, other):
            steps.accept(sequence, kept[-1])
        token = picked[kept[-1] - 1]
    assert {1, 1 + drafts} <= set(kept)
    assert one.tokens == other.tokens
    for sequence in (one, other):
        steps.release(sequence)


def test_it_is_taken_for_few_drafts_of_one_request(engine: Engine, joined_rounds: list[int]) -> None:
    plain = Options(max_tokens=12, ignore_eos=True, draft_tokens=1, drafter="mtp")

    def rounds(options: Options) -> int:
        joined_rounds.clear()
        engine.generate("And", options).run()
        return len(joined_rounds)

    assert rounds(plain) > 4
    assert rounds(replace(plain, sampling=GREEDY)) > 4
    assert rounds(replace(plain, draft_tokens=3)) > 2
    assert rounds(replace(plain, draft_tokens=4)) <= 2  # at the end there is room for fewer
    assert not rounds(replace(plain, draft_p_min=0.5))
    assert not rounds(replace(plain, sampling=Sampling(repeat_penalty=1.1)))
    assert not rounds(Options(max_tokens=12, speculate=False))


def test_texts_are_the_same(engine: Engine, joined_rounds: list[int]) -> None:
    for seed in range(3):
        plain = Options(Sampling(seed=seed), max_tokens=60, ignore_eos=True)
        ways = [replace(plain, speculate=False), replace(plain, draft_tokens=2, drafter="mtp"), plain]
        assert len({engine.generate("And", options).run() for options in ways}) == 1
    assert joined_rounds


def test_large_models_take_the_steps_one_by_one(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    steps = load(packages("trained", "Q8_0"), context=64, threads=1).steps
    sequence = steps.new_sequence()
    steps.prefill([sequence], [[1, 2]])
    assert not steps.joins(sequence, 1)
    with pytest.raises(TrigraphError, match="not one run here; call draft, and then verify"):
        steps.draft_and_verify(sequence, 3, 1, SAMPLED.drawing)


def test_what_it_refuses_changes_nothing(engine: Engine) -> None:
    steps = engine.steps
    sequence = steps.new_sequence()
    steps.prefill([sequence], [[*range(198)]])
    with pytest.raises(TrigraphError, match="token ids must be from 0 to"):
        steps.draft_and_verify(sequence, -1, 1, SAMPLED.drawing)
    assert steps.joins(sequence, 1)
    assert not steps.joins(sequence, 4)
    assert not steps.joins(sequence, 2)  # no room for three tokens
    steps.draft_and_verify(sequence, 3, 1, SAMPLED.drawing)
    steps.accept(sequence, 1)
    assert sequence.length == 199
    assert not steps.joins(sequence, 1)  # nor for two
    steps.release(sequence)
