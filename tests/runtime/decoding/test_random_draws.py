"""The random choice of tokens: its distribution, what it depends on, and that the library's is NumPy's to the bit."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from support.fakes.engine import VOCAB as VOCAB_OF_BYTES
from support.fakes.engine import engine_of
from trigraph.runtime import Options, Sampling
from trigraph.runtime.device.sampler import SamplingParameters
from trigraph.runtime.sampling import draws

VOCAB = 5000
FILTERS = [
    SamplingParameters(0.7, 20, 0.95, 0.0),
    SamplingParameters(1.3, 1, 1.0, 0.0),
    SamplingParameters(0.7, VOCAB + 1, 0.5, 0.0),
    SamplingParameters(0.5, 1000, 1.0, 0.1),
    SamplingParameters(1.0, 0, 0.9, 0.0),
    SamplingParameters(5.0, 0, 0.999, 0.0),
    SamplingParameters(5.0, 0, 1.0, 0.001),
    SamplingParameters(2.0, 0, 0.7, 0.01),
    SamplingParameters(1e-6, 20, 1.0, 0.0),
    SamplingParameters(0.05, 0, 1.0, 0.0),
    SamplingParameters(1.3, 0, 1.0, 0.0),
]


def row(seed: int = 0, vocab: int = VOCAB) -> NDArray[np.float32]:
    return (3 * np.random.default_rng(seed).standard_normal(vocab)).astype(np.float32)


FEW = [SamplingParameters(1.0, 6, 1.0, 0.0), SamplingParameters(1.0, 0, 0.8, 0.0), SamplingParameters(1.5, 0, 1.0, 0.0)]


def shares(logits: NDArray[np.float32], filters: SamplingParameters) -> NDArray[np.float64]:
    """The probability of each token, by the filters as their papers state them."""
    order = np.argsort(-logits, kind="stable")
    x = logits[order].astype(np.float64) / filters.temperature
    if filters.top_k:
        x[filters.top_k :] = -np.inf
    p = np.exp(x - x.max())
    p /= p.sum()
    if filters.top_p < 1:
        p[np.concatenate([[False], p.cumsum()[:-1] >= filters.top_p])] = 0
    p[p < filters.min_p * p[0]] = 0
    found = np.zeros(len(p))
    found[order] = p / p.sum()
    return found


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters_are_those_of_the_formulas(filters: SamplingParameters) -> None:
    for seed in range(5):
        expected = shares(row(seed), filters)
        places, weights = draws.survivors(row(seed), filters)
        assert set(places) == set(np.flatnonzero(expected))
        np.testing.assert_allclose(weights / weights.sum(), expected[places], rtol=1e-9)


def test_numbers_are_those_of_the_generator() -> None:
    """SplitMix64 from state 1234567 on, as published for many languages."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert draws._outputs(1234567, np.arange(5, dtype=np.uint64)).tolist() == known


def test_numbers_depend_on_seed_position_and_token_only() -> None:
    tokens = np.arange(20)
    numbers = [draws.numbers(seed, position, tokens) for seed in range(20) for position in range(20)]
    assert len(set(np.concatenate(numbers))) == 8000
    assert min(map(np.min, numbers)) > 0
    assert max(map(np.max, numbers)) < 1
    np.testing.assert_array_equal(draws.numbers(7, 9, tokens[5:]), draws.numbers(7, 9, tokens)[5:])
    # Texts must stay reproducible across releases: these values are part of the interface.
    assert draws.numbers(0, 0, np.array([0, 1])).tolist() == [0.13870941014555427, 0.9711020828012883]
    assert draws.numbers(2**64 - 1, 10**6, np.array([248319])).tolist() == [0.9317773068587033]


def test_exponentials_and_logarithms() -> None:
    x = np.concatenate([-np.geomspace(1e-300, 708, 3000), [0.0]])
    np.testing.assert_allclose(draws.exp(x), [math.exp(v) for v in x], rtol=4e-16)
    assert draws.exp(np.array([-708.5, -1e300, -np.inf])).tolist() == [0, 0, 0]
    u = np.concatenate([np.geomspace(2.0**-53, 0.9, 3000), 1 - np.geomspace(2.0**-53, 0.1, 300)])
    np.testing.assert_allclose(draws.log(u), [math.log(v) for v in u], rtol=4e-16)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_library_draws_what_numpy_draws(filters: SamplingParameters, operator_library: object) -> None:
    if draws._function() is None:
        pytest.skip("the operator library is another one than the CPU's")
    for seed in range(30):
        for vocab in (1, 63, 64, 65, VOCAB):
            logits = row(seed, vocab)
            if seed % 3 == 0:
                logits[1::2] = -np.inf
            if seed % 5 == 0:
                logits[:] = np.round(logits)  # ties
            for ids in (None, 7 + 3 * np.arange(vocab)):
                place = filters._replace(seed=2**64 - 1 - seed), 2**20 * seed
                assert draws.draw(logits, ids, *place) == draws._draw(logits, ids, *place)


@pytest.fixture(params=["library", "NumPy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways to a draw."""
    if request.param == "NumPy":
        monkeypatch.setattr(draws, "_function", lambda: None)
    else:
        request.getfixturevalue("operator_library")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("filters", FEW)
def test_draws_follow_the_distribution(filters: SamplingParameters) -> None:
    logits = row(0, 12)
    drawn = [draws.draw(logits, None, filters._replace(seed=5), position) for position in range(4000)]
    assert_follows(drawn, shares(logits, filters))


@pytest.mark.parametrize("drafts", [0, 3])
def test_texts_follow_the_distribution(drafts: int) -> None:
    """With drafts, some of which are wrong, as without; and each token is drawn apart from the one before it."""
    logits, options = row(0, VOCAB_OF_BYTES), Sampling(temperature=0.7, top_k=8, top_p=1.0)
    engine, _ = engine_of(lambda history: logits)
    drawn: list[int] = []
    for seed in range(60):
        sampling = replace(options, seed=seed)
        request = engine.generate([1, 2, 3], Options(sampling, max_tokens=50, draft_tokens=drafts, ignore_eos=True))
        request.run()
        drawn += request.ids
    assert len(drawn) == 3000
    expected = shares(logits, options.parameters)
    assert_follows(drawn, expected)
    ids = np.flatnonzero(expected)
    places = np.searchsorted(ids, drawn).tolist()
    assert_follows([len(ids) * a + b for a, b in pairwise(places)], np.outer(expected[ids], expected[ids]).ravel())


def assert_follows(drawn: Sequence[int | None], shares: NDArray[np.float64]) -> None:
    """By a chi-squared test, which one in two thousand such samples would fail. What is rare counts together."""
    assert None not in drawn
    counts = np.bincount(np.array(drawn), minlength=len(shares))
    assert not counts[shares == 0].any()
    expected = len(drawn) * shares
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    found, freedom = float(((counts - expected) ** 2 / expected).sum()), len(expected) - 1
    # The quantile by Wilson and Hilferty, 1931.
    assert found < freedom * (1 - 2 / (9 * freedom) + 3.29 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("filters", [FILTERS[0], FILTERS[-1]], ids=str)
def test_like_distributions_draw_the_same_token(filters: SamplingParameters, noise: float) -> None:
    """At least as often as (1 - d) / (1 + d), with d their distance in total variation (Bavarian and others, 2020)."""
    ours = row(1, 50)
    other = (ours + noise / 3 * row(2, 50)).astype(np.float32)
    distance = 0.5 * np.abs(shares(ours, filters) - shares(other, filters)).sum()
    places = [(None, filters, position) for position in range(4000)]
    same = np.mean([draws.draw(ours, *place) == draws.draw(other, *place) for place in places])
    assert same > (1 - distance) / (1 + distance) - 0.03  # three deviations of the mean of 4000
    assert same <= 1 - distance + 0.03  # nothing can do better


def test_a_seed_gives_the_same_tokens_on_every_machine() -> None:
    """Recorded: no library's logarithm, sum or random number decides."""
    logits = np.tile((np.arange(3000) * 7919 % 6000).astype(np.float32) / np.float32(1000), 3)
    found = [draws.draw(logits, None, filters._replace(seed=seed), 77) for seed in range(3) for filters in FILTERS]
    assert found == [
        6963,
        2642,
        1754,
        1754,
        1754,
        6326,
        6326,
        4853,
        5642,
        5173,
        4853,
        4926,
        2642,
        322,
        322,
        7503,
        7503,
        7503,
        7503,
        2642,
        322,
        7503,
        247,
        2642,
        866,
        866,
        866,
        6324,
        6324,
        866,
        5642,
        866,
        866,
    ]
