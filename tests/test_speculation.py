"""Texts with and without speculation are the same, on the trained tiny model; what its drafts are worth is printed."""

import pytest
from packages import Packages

from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.decoding.stats import Stats

PROMPTS = (
    "In the beginning God created the heaven and the earth.",
    "And it came to pass, when the king heard the words of the",
    "It is a truth universally acknowledged, that a single man",
    "Blessed is the man that walketh not in the counsel of",
    "The old gentleman shook his head, and said to the boy,",
    "And he said unto them, Go ye therefore into all the",
    "She looked out of the window, and saw that the carriage",
    "There was no possibility of taking a walk that day. We had",
    "The LORD is my shepherd; I shall not want. He maketh me",
    '"I do not know what you mean," said he, with a smile,',
    "Now these are the names of the children of Israel, which",
    "It was a dark and stormy night; the rain fell in torrents",
    "Then Jesus answered and said unto him, Verily, verily, I say",
    "My dear sister, I have received your letter, and I hope",
    "And the sons of Noah, that went forth of the ark, were",
    "The captain went on deck, and ordered the men to",
    "Moreover the word of the LORD came unto me, saying,",
    "He had been for some time in love with the young lady,",
    "And I saw a new heaven and a new earth: for the first",
    "1 2 3 4 5 6 7 8 9 10 11 12",
)
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
    """Ids and statistics of an answer to each prompt."""
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
    """The answers of plain decoding."""
    return texts(engine, sampling, speculate=False)[0]


def test_plain_decoding_makes_different_texts(plain: list[list[int]]) -> None:
    assert [len(ids) for ids in plain] == [TOKENS] * len(PROMPTS)
    assert len({tuple(ids) for ids in plain}) == len(PROMPTS)


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


@pytest.mark.parametrize("options", [{}, {"draft_tokens": 7, "draft_p_min": 0.4}], ids=["governor", "floor"])
def test_a_changing_depth_does_not_change_a_text(
    engine: Engine, sampling: Sampling, plain: list[list[int]], options: dict[str, object]
) -> None:
    assert texts(engine, sampling, **options)[0] == plain


def test_the_seed_makes_the_text(engine: Engine) -> None:
    prompt = PROMPTS[0]
    answers = [
        engine.generate(prompt, Options(Sampling(temperature=0.8, seed=seed), max_tokens=20)).run()
        for seed in (1, 2, 1)
    ]
    assert answers[0] == answers[2] != answers[1]
