"""Sampling against formulas written out in NumPy, and its independence of everything but logits, seed and position."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from support.fakes.step import FakeStep
from trigraph.models.errors import TrigraphError
from trigraph.runtime.sampling import draws
from trigraph.runtime.sampling import top_logits as top_logits_module
from trigraph.runtime.sampling.biases import Biases
from trigraph.runtime.sampling.sampling import Sampler, Sampling, choose
from trigraph.runtime.sampling.top_logits import top_logits

VOCAB = 5000


def row(seed: int = 0, vocab: int = VOCAB) -> NDArray[np.float32]:
    return (3 * np.random.default_rng(seed).standard_normal(vocab)).astype(np.float32)


@pytest.fixture(params=["library", "NumPy"])
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways to the largest logits."""
    if request.param == "NumPy":
        monkeypatch.setattr(top_logits_module, "_function", lambda: None)
        monkeypatch.setattr(draws, "_function", lambda: None)
    else:
        request.getfixturevalue("operator_library")
        if top_logits_module._function() is None:
            pytest.skip("the operator library is another one than the CPU's")


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("vocab", [1, 63, 64, 1000, 4097, 40007])
@pytest.mark.parametrize("levels", [3, 10**6])
def test_top_logits_break_ties_by_id(vocab: int, levels: int) -> None:
    logits = np.random.default_rng(1).integers(0, levels, vocab).astype(np.float32)
    logits[::5] = -np.inf
    order = np.argsort(-logits, kind="stable")
    for k in (1, 2, 15, 16, 64, vocab, vocab + 5):
        ids, values = top_logits(logits, k)
        assert ids == order[:k].tolist()
        assert values == logits[order[:k]].tolist()


@pytest.mark.usefixtures("search")
def test_top_logits_of_any_array() -> None:
    logits = row()
    expected = top_logits(logits, 10)
    assert top_logits(np.stack([logits, logits], axis=1)[:, 1], 10) == expected
    logits.setflags(write=False)
    assert top_logits(logits, 10) == expected
    assert top_logits(logits[:0], 10) == ([], [])


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("place", [0, 100, VOCAB - 1])
def test_a_logit_that_is_no_number_is_refused(place: int) -> None:
    logits = row()
    logits[place] = np.nan
    ids, values = top_logits(logits, 10)
    assert ids == [place]
    assert np.isnan(values).all()
    with pytest.raises(TrigraphError, match="not finite"):
        choose(logits, Sampling(), 0)


def test_a_text_does_not_depend_on_how_it_is_cut_into_steps() -> None:
    options = Sampling(temperature=0.9, repeat_penalty=1.2, frequency_penalty=0.1, penalty_window=5, seed=3)
    rows = np.stack([row(i, 200) for i in range(30)])
    alone = Sampler(options, [1, 2, 3])
    one = [alone.pick(FakeStep(np.zeros(1, np.int64), rows[i : i + 1]), 0, 100 + i) for i in range(30)]
    together = Sampler(options, [1, 2, 3])
    many = [together.pick(FakeStep(np.zeros(30, np.int64), rows), i, 100 + i) for i in range(30)]
    assert one == many


def test_greedy_reads_tokens_only() -> None:
    sampler = Sampler(Sampling(temperature=0), [])
    assert [sampler.pick(FakeStep(np.array([4, 9])), i, i) for i in range(2)] == [4, 9]


def test_penalties_are_those_of_the_formulas() -> None:
    options = Sampling(temperature=0, repeat_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2, penalty_window=6)
    history = [5, 6, 7, 8, 5, 5, 6]  # the first 5 has left the window
    logits = row(3, 10)
    logits[[5, 6]] = [2.0, -1.0]
    expected = logits.astype(np.float64)
    for token, count in ((5, 2), (6, 2), (7, 1), (8, 1)):
        scaled = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
        expected[token] = scaled - 0.3 - 0.2 * count
    sampler = Sampler(options, history)
    assert sampler._penalties is not None
    np.testing.assert_allclose(sampler._penalties.apply(logits), expected, rtol=1e-6)
    assert sampler.pick(FakeStep(np.zeros(1, np.int64), logits[None]), 0, 0) == int(expected.argmax())
    assert logits[5] == 2.0, "the step's own logits were changed"


def test_a_window_of_none_and_of_all() -> None:
    assert not Sampling(repeat_penalty=2.0, penalty_window=0).penalizes
    sampler = Sampler(Sampling(temperature=0, presence_penalty=100.0, penalty_window=-1), range(100))
    logits = row(1, 101)
    assert sampler.pick(FakeStep(np.zeros(1, np.int64), logits[None]), 0, 0) == 100


def test_extreme_values() -> None:
    logits = np.full(300, -np.inf, np.float32)
    logits[7] = 3.0
    for options in (Sampling(), Sampling(top_k=0), Sampling(top_k=0, top_p=1.0), Sampling(temperature=1e-6)):
        assert choose(logits, options, 0) == 7
    for damaged in (np.full(300, np.nan, np.float32), np.full(300, -np.inf, np.float32)):
        for options in (Sampling(), Sampling(top_k=0)):
            with pytest.raises(TrigraphError, match="not finite"):
                choose(damaged, options, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_k", 2**70),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("repeat_penalty", 0.0),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", float("inf")),
        ("penalty_window", -2),
        ("penalty_window", 2**70),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_options_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(TrigraphError, match=f"{name} is .*; it must be"):
        Sampling(**{name: value})  # type: ignore[arg-type]


def test_biases_are_added_before_penalties() -> None:
    logits = row(4, 10)
    logits[[2, 5]] = [1.0, -1.0]
    bias = ((2, 3.0), (5, 0.5), (5, 4.0), (7, -np.inf))
    sampler = Sampler(Sampling(temperature=0, logit_bias=bias, repeat_penalty=2.0), [2])
    adjusted = sampler._adjusted(logits)
    expected = logits.copy()
    expected[[2, 5, 7]] = [(1 + 3) / 2, 3.5, -np.inf]
    np.testing.assert_allclose(adjusted, expected)
    assert (logits[2], logits[5]) == (1.0, -1.0), "the step's own logits were changed"


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_banned_token_is_never_chosen(temperature: float) -> None:
    logits = np.array([9, 0, 0.1, 8, -2], np.float32)
    options = Sampling(temperature, top_k=0, top_p=1.0, seed=1, logit_bias=((0, -np.inf), (3, -np.inf)))
    sampler = Sampler(options, [])
    step = FakeStep(np.zeros(1, np.int64), logits[None])
    drawn = {sampler.pick(step, 0, position) for position in range(500)}
    assert drawn == ({1, 2, 4} if temperature else {2})
    banned = Sampler(Sampling(temperature, logit_bias=tuple((i, -np.inf) for i in range(5))), [])
    with pytest.raises(TrigraphError, match="banned by logit_bias"):
        banned.pick(step, 0, 0)


@pytest.mark.usefixtures("search")
def test_tokens_without_any_chance_are_never_drawn() -> None:
    logits = np.array([1, -np.inf, 2, -np.inf], np.float32)
    for options in (Sampling(top_k=4), Sampling(top_k=0, top_p=1.0), Sampling(top_k=0, top_p=1.0, min_p=1e-9)):
        assert all(np.isfinite(logits[choose(logits, options, position)]) for position in range(200))


def test_guesses_are_what_would_be_picked() -> None:
    """Of as many tokens as there are logits: the head may know fewer than the model."""
    options = Sampling(temperature=0.9, seed=3, repeat_penalty=1.3, penalty_window=4, logit_bias=((1, 2.0), (150, 9.0)))
    for position in range(50):
        few = row(position, 100)
        every = np.concatenate([few, np.full(100, -np.inf, np.float32)])
        guess = Sampler(options, [1, 2, 120]).guess(FakeStep(np.zeros(1, np.int64), few[None]), 0, position)
        assert guess == Sampler(options, [1, 2, 120]).pick(FakeStep(np.zeros(1, np.int64), every[None]), 0, position)
    assert Sampler(Sampling(temperature=0), []).guess(FakeStep(np.array([3, 7])), 1, 0) == 7
    step = FakeStep(np.array([0]), row(0, 1)[None])
    assert Sampler(Sampling(logit_bias=((0, -np.inf),)), []).guess(step, 0, 0) == 0


@pytest.mark.parametrize("bias", [float("nan"), float("inf")])
def test_biases_out_of_range_are_refused(bias: float) -> None:
    with pytest.raises(TrigraphError, match="logit_bias of token 3 is"):
        Sampling(logit_bias=((3, bias),))


def test_choices_of_a_request_check_their_biases_once() -> None:
    """Those of 128 choices, 100,000 each, took ten seconds."""

    class Pair(tuple[int, float]):
        looked_at = 0

        def __len__(self) -> int:
            Pair.looked_at += 1
            return super().__len__()

    first = Sampling(logit_bias=(Pair((3, 1.0)), Pair((5, -np.inf))))
    second = replace(first, seed=1)
    assert Pair.looked_at == 2 and first.logit_bias is second.logit_bias
    assert Biases(second.logit_bias).banned == {5} and second.logit_bias == ((3, 1.0), (5, -np.inf))


@pytest.mark.parametrize("bias", [(), ((3, 1.0), (5, -np.inf))])
def test_sampling_as_a_dictionary(bias: tuple[tuple[int, float], ...]) -> None:
    sampling = Sampling(seed=4, logit_bias=bias)
    assert Sampling(**asdict(sampling)) == sampling and asdict(sampling)["logit_bias"] == bias


def test_biases_of_tokens_out_of_the_vocabulary_are_refused() -> None:
    Sampling(logit_bias=((9, 1.0),)).check_vocabulary(10)
    for token in (-1, 10):
        with pytest.raises(TrigraphError, match=f"for token {token}; ids of this model are from 0 to 9"):
            Sampling(logit_bias=((token, 1.0),)).check_vocabulary(10)
