"""A draft and its verify as one run: what both are alone, for small models, and for one request with one draft."""

from dataclasses import replace

import pytest

from support.packages import Packages
from support.promise import row_bits
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load, loading
from trigraph.runtime.decoding.sampling import Sampler
from trigraph.runtime.device.device import Drawing
from trigraph.runtime.execution.joined_round import JoinedRound
from trigraph.runtime.execution.results import RoundResult
from trigraph.runtime.state.sequence import Sequence

SAMPLED, GREEDY = Sampling(seed=5), Sampling(temperature=0)


@pytest.fixture(scope="module")
def engine(packages: Packages) -> Engine:
    return load(packages("trained", "Q8_0"), context=200, threads=1)


@pytest.fixture
def joined_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the sequences of such rounds."""
    found: list[int] = []
    run = JoinedRound.run

    def recorded(joined: JoinedRound, sequence: Sequence, token: int, drawing: Drawing) -> RoundResult:
        found.append(sequence.length)
        return run(joined, sequence, token, drawing)

    monkeypatch.setattr(JoinedRound, "run", recorded)
    return found


@pytest.mark.parametrize("sampling", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_it_gives_what_the_steps_give_one_by_one(engine: Engine, sampling: Sampling) -> None:
    steps, sampler = engine.steps, Sampler(sampling, [])
    one, other = steps.new_sequence(), steps.new_sequence()
    token = int(steps.prefill([one, other], [[3, 1, 4, 1, 5]] * 2).tokens[0])
    kept = []
    for _ in range(40):
        guess = sampler.guess(steps.draft([one], [token]), 0, one.length + 1)
        rows = steps.verify([one], [[token, guess]])
        plain = row_bits(rows)
        picked = [sampler.pick(rows, i, one.length + 1 + i) for i in range(2)]
        joined = steps.draft_and_verify(other, token, sampling.drawing)
        assert list(joined.drafts) == [[guess]]
        assert row_bits(joined.result) == plain
        assert joined.drawn == picked
        kept.append(1 + (picked[0] == guess))
        for sequence in (one, other):
            steps.accept(sequence, kept[-1])
        token = picked[kept[-1] - 1]
    assert {1, 2} == set(kept)
    assert one.tokens == other.tokens
    for sequence in (one, other):
        steps.release(sequence)


def test_it_is_taken_for_one_draft_of_one_request(engine: Engine, joined_rounds: list[int]) -> None:
    plain = Options(max_tokens=12, ignore_eos=True, draft_tokens=1, drafter="mtp")

    def rounds(options: Options) -> int:
        joined_rounds.clear()
        engine.generate("And", options).run()
        return len(joined_rounds)

    assert rounds(plain) > 4
    assert rounds(replace(plain, sampling=GREEDY)) > 4
    assert rounds(replace(plain, draft_tokens=2)) <= 1  # at the end there is room for one only
    assert not rounds(replace(plain, draft_p_min=0.5))
    assert not rounds(replace(plain, sampling=Sampling(repeat_penalty=1.1)))
    assert not rounds(Options(max_tokens=12, speculate=False))


def test_texts_are_the_same(engine: Engine, joined_rounds: list[int]) -> None:
    for seed in range(3):
        plain = Options(Sampling(seed=seed), max_tokens=60, ignore_eos=True)
        ways = [replace(plain, speculate=False), replace(plain, draft_tokens=1, drafter="mtp"), plain]
        assert len({engine.generate("And", options).run() for options in ways}) == 1
    assert joined_rounds


def test_large_models_take_the_steps_one_by_one(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    steps = load(packages("trained", "Q8_0"), context=64, threads=1).steps
    sequence = steps.new_sequence()
    steps.prefill([sequence], [[1, 2]])
    assert not steps.joins(sequence)
    with pytest.raises(TrigraphError, match="not one run here; call draft, and then verify"):
        steps.draft_and_verify(sequence, 3, SAMPLED.drawing)


def test_what_it_refuses_changes_nothing(engine: Engine) -> None:
    steps = engine.steps
    sequence = steps.new_sequence()
    steps.prefill([sequence], [[*range(198)]])
    with pytest.raises(TrigraphError, match="token ids must be from 0 to"):
        steps.draft_and_verify(sequence, -1, SAMPLED.drawing)
    assert steps.joins(sequence)
    steps.accept(sequence, len(steps.draft_and_verify(sequence, 3, SAMPLED.drawing).drafts))
    assert sequence.length == 199
    assert not steps.joins(sequence)  # no room for two tokens
    steps.release(sequence)
