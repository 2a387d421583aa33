"""Texts with and without speculation are the same, on the trained tiny model; what its drafts are worth is printed."""

import pytest

from support.models.packages import Packages
from support.texts.prompts import PROMPTS
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.requests.stats import Stats

SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(temperature=0.8, top_k=20, top_p=0.95, seed=20261121),
}
TOKENS = 64


@pytest.fixture(scope="module")
def engine(packages: Packages) -> Engine:
    return load(packages("trained", "Q8_0"), context=256, threads=1)


@pytest.fixture(scope="module", params=SAMPLINGS)
def sampling(request: pytest.FixtureRequest) -> Sampling:
    return SAMPLINGS[request.param]


def texts(engine: Engine, sampling: Sampling, **options: object) -> tuple[list[list[int]], list[Stats]]:
    """Ids and statistics of a completion of each prompt."""
    ids, stats = [], []
    for prompt in PROMPTS:
        request = Options(sampling, max_tokens=TOKENS, ignore_eos=True, **options)  # type: ignore[arg-type]
        generation = engine.generate(prompt, request)
        generation.run()
        ids.append(generation.ids)
        stats.append(generation.stats)
    return ids, stats


@pytest.fixture(scope="module")
def plain(engine: Engine, sampling: Sampling) -> list[list[int]]:
    """The completions of plain decoding."""
    return texts(engine, sampling, speculate=False)[0]


def test_plain_decoding_makes_different_texts(plain: list[list[int]]) -> None:
    assert [len(ids) for ids in plain] == [TOKENS] * len(PROMPTS)
    assert len({tuple(ids) for ids in plain}) == len(PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize("drafts", range(1, 8))
def test_speculation_does_not_change_a_text(
    engine: Engine, sampling: Sampling, plain: list[list[int]], drafts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, stats = texts(engine, sampling, draft_tokens=drafts)
    assert ids == plain
    accepted, drafted = sum(s.accepted for s in stats), sum(s.drafted for s in stats)
    rounds = sum(s.rounds for s in stats)
    assert accepted > 0
    with capsys.disabled():
        per_round = (TOKENS - 1) * len(stats) / rounds
        print(
            f"\ntemperature {sampling.temperature}, {drafts} drafts: accepted {accepted}/{drafted} "
            f"({accepted / drafted:.0%}), {per_round:.2f} tokens a round",
            end="",
        )


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"draft_tokens": 7, "draft_p_min": 0.4}], ids=["governor", "floor"])
def test_a_changing_depth_does_not_change_a_text(
    engine: Engine, sampling: Sampling, plain: list[list[int]], options: dict[str, object]
) -> None:
    assert texts(engine, sampling, **options)[0] == plain


def test_the_seed_makes_the_text(engine: Engine) -> None:
    prompt = PROMPTS[0]
    completions = [
        engine.generate(prompt, Options(Sampling(temperature=0.8, seed=seed), max_tokens=20)).run()
        for seed in (1, 2, 1)
    ]
    assert completions[0] == completions[2] != completions[1]
