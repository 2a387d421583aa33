"""Requests with images: what is refused, and what looks at tokens of text alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.seeing import SeeingPackages, picture, prompt_of
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.images.prompt import ImagePrompt


@pytest.fixture(scope="module")
def engine(seeing: SeeingPackages) -> Iterator[Engine]:
    with load(seeing("tiny-dense", "F32"), context=256, threads=1) as engine:
        yield engine


def test_penalties_and_drafts_of_text_alone(engine: Engine) -> None:
    """Neither looks at the tokens of images, although the text around them repeats itself."""
    shown = picture((2, 3))
    ids = prompt_of(12, seed=3).ids
    repeated = ImagePrompt(
        (*ids, *[0] * 6, *ids, *[0] * 6, *ids[:-2]),
        tuple(prompt_of(12, shown, 12, shown, 10).images),
        (shown, shown),
    )
    for sampling in (
        Sampling(temperature=0),
        Sampling(temperature=0.8, seed=5, repeat_penalty=1.4, penalty_window=-1, presence_penalty=0.5),
    ):
        plain = engine.submit(repeated, Options(sampling, 30, ignore_eos=True, speculate=False))
        plain.result()
        for drafter in ("ngram", "mtp", "auto"):
            request = engine.submit(repeated, Options(sampling, 30, ignore_eos=True, drafter=drafter, draft_tokens=7))
            request.result()
            assert request.ids == plain.ids
    text = prompt_of(*[len(repeated.ids)]).ids
    assert engine.generate(repeated).prompt == list(repeated.ids) and min(text) >= 0


def test_what_is_refused(engine: Engine, seeing: SeeingPackages, packages: object) -> None:
    prompt = prompt_of(3, (2, 2), 3)
    with pytest.raises(TrigraphError, match="a receipt of a completion with images is not supported"):
        engine.submit(prompt, Options(receipt=True))
    for method in (engine.score, engine.embed):
        with pytest.raises(TrigraphError, match="are of text alone; leave the images out"):
            method(prompt)
        method(ImagePrompt(prompt.ids))
    with (
        load(packages("tiny-dense", "F32")) as blind,  # type: ignore[operator]
        pytest.raises(TrigraphError, match=r"no vision tower.*put the model's mmproj-\*\.gguf beside its file"),
    ):
        blind.submit(prompt)
    with pytest.raises(TrigraphError, match="has 261 tokens; it must have 1 to 256"):
        engine.submit(prompt_of(5, (16, 16)))


def test_a_tower_that_fails_fails_one_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room for the tower")

    vision = engine.model.vision
    assert vision is not None
    with monkeypatch.context() as patch:
        patch.setattr(vision, "rows", fail)
        failing = engine.submit(prompt_of(3, (2, 5), 3, seed=8), Options(max_tokens=5))
        beside = engine.submit(prompt_of(9, seed=9), Options(max_tokens=5, ignore_eos=True))
        with pytest.raises(MemoryError, match="no room for the tower"):
            failing.result()
        beside.result()
    engine.submit(prompt_of(3, (2, 5), 3, seed=8), Options(max_tokens=5)).result()
