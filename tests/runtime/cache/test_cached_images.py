"""Caches of prompts with images: what is found goes on with the same bits, and other images are not taken for these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.models.seeing import SeeingPackages, Seen, picture, prompt_of
from trigraph.models.errors import TrigraphError
from trigraph.models.rope_positions import ImageSpan
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.cache.session_file import SessionFile, save_session
from trigraph.runtime.images import prompt as image_prompt
from trigraph.runtime.images.embeddings import EmbeddingCache
from trigraph.runtime.images.prompt import ImagePrompt, PlacedImage, same_images

GREEDY = Options(Sampling(temperature=0), 12, ignore_eos=True, logprobs=1)
PROMPT = prompt_of(20, (3, 4), 6)


@pytest.fixture
def folder(seeing: SeeingPackages) -> Path:
    return seeing("tiny-dense", "F32")


def answer(engine: Engine, prompt: ImagePrompt, cache: Path | None = None) -> tuple[int, list[int], list[Any]]:
    """Tokens of the prompt that a cache had, and what came of it."""
    request = engine.generate(prompt, GREEDY, cache)
    request.run()
    return request.stats.reused_tokens, request.ids, request.logprobs


@pytest.mark.parametrize("prompt", [PROMPT, prompt_of(30)], ids=["image", "text"])
def test_prompt_files(folder: Path, tmp_path: Path, prompt: ImagePrompt) -> None:
    """The next program goes on, with or without the same image; what has none is a file as before."""
    path = tmp_path / "file"
    with load(folder, context=128) as engine:
        found, *expected = answer(engine, prompt, path)
        assert found == 0
    size = int.from_bytes(path.read_bytes()[:8], "little")
    metadata = json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]
    assert (metadata["version"], "images" in metadata) == (("4", True) if prompt.images else ("3", False))
    with load(folder, context=128, threads=2) as engine:
        found, *again = answer(engine, prompt, path)
        assert found == len(prompt.ids) and again == expected
        vision = engine.model.vision
        assert vision is not None and vision.embeddings.computed == 0
    if prompt.images:
        other = ImagePrompt(prompt.ids, prompt.images, (picture((3, 4), 77),))
        with load(folder, context=128) as engine:
            fresh = answer(engine, other)
        with load(folder, context=128) as engine:
            found, *again = answer(engine, other, path)
            assert found <= 20 and (0, *again) == fresh


def test_the_tier_on_disk(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.cache.disk_tier._MIN_SECONDS", 0)
    monkeypatch.setattr("trigraph.runtime.cache.disk_tier._MIN_READS", 0)
    monkeypatch.setattr("trigraph.runtime.cache.tensor_file._OPENING", -1)
    prompts = [PROMPT, ImagePrompt(PROMPT.ids, PROMPT.images, (picture((3, 4), 77),))]
    with load(folder, context=128) as engine:
        expected = [answer(engine, prompt)[1:] for prompt in prompts]
    for found in (0, len(PROMPT.ids)):
        for prompt, ours in zip(prompts, expected, strict=True):
            with load(folder, context=128, cache_dir=tmp_path) as engine:
                assert engine.disk is not None
                reused, *again = answer(engine, prompt)
                engine.disk.finish()
                assert tuple(again) == ours
                assert reused == found or reused <= 20


@pytest.mark.parametrize("key", [-5, -(2**31)])
def test_keys_that_collide(folder: Path, monkeypatch: pytest.MonkeyPatch, key: int, tmp_path: Path) -> None:
    """A few tokens of an image do not tell it from all others, so caches compare digests too."""
    monkeypatch.setattr(image_prompt, "prefix_keys", lambda digest, count: np.full(count, key, np.int32))
    prompts = [ImagePrompt(PROMPT.ids, PROMPT.images, (picture((3, 4), seed),)) for seed in (1, 2)]
    expected = []
    for prompt in prompts:
        with load(folder, context=128) as engine:
            expected.append(answer(engine, prompt)[1:])
    assert expected[0] != expected[1]
    with load(folder, context=128) as engine:
        for _ in range(2):
            for prompt, ours in zip(prompts, expected, strict=True):
                assert answer(engine, prompt)[1:] == ours


def test_images_of_other_sizes_at_the_same_place(folder: Path) -> None:
    """Of the same number of tokens: they are others, and have other positions."""
    prompts = [prompt_of(5, size, 4) for size in ((2, 6), (3, 4), (6, 2), (2, 6))]
    with load(folder, context=128) as engine:
        found = [answer(engine, prompt) for prompt in prompts]
    assert len({tuple(ids) for _, ids, _ in found}) == 3 and found[3][1:] == found[0][1:]
    assert [reused <= 5 for reused, _, _ in found] == [True, True, True, False]


@pytest.fixture
def saved(folder: Path, tmp_path: Path) -> tuple[Engine, Any]:
    """An engine, and a function that saves what a sequence says of itself and opens that."""
    engine = load(folder, context=128)

    def save(images: tuple[PlacedImage, ...] | None = None, token: int | None = None) -> SessionFile:
        seen = Seen(engine, PROMPT)
        sequence = seen.start(engine)
        seen.prefill(engine, sequence, len(seen))
        if images is not None:
            sequence.images = images
        if token is not None:
            sequence.tokens[22] = token
        from trigraph.runtime.cache.checkpoint import Checkpoint

        checkpoint = Checkpoint.of(engine.steps.state, sequence)
        save_session(tmp_path / "file", engine.identity, engine.steps.state, sequence, [checkpoint])
        return SessionFile(tmp_path / "file", engine.identity, engine.steps)

    return engine, save


def test_saved_images(saved: tuple[Engine, Any]) -> None:
    engine, save = saved
    vision = engine.model.vision
    assert vision is not None
    file = save()
    assert file.images == vision.placed(PROMPT)
    (sequence,) = file.resume([file.checkpoint(0)])
    assert sequence.images == file.images


def test_images_that_contradict_the_tokens(saved: tuple[Engine, Any]) -> None:
    engine, save = saved
    vision = engine.model.vision
    assert vision is not None
    (image,) = vision.placed(PROMPT)
    moved = [(19, 3, 4), (20, 3, 5), (20, 1, 1), (20, 1 << 15, 1 << 15)]
    others = [(PlacedImage(ImageSpan(*span), image.digest),) for span in moved]
    for images in [(), *others, (PlacedImage(image.span, b"\0" * 32),), (image, image)]:
        with pytest.raises(TrigraphError, match="is not a session file, or damaged"):
            save(images)
    with pytest.raises(TrigraphError, match="is not a session file, or damaged"):
        save(token=7)


def test_same_images() -> None:
    one, other = (PlacedImage(ImageSpan(3, 2, 2), bytes([i])) for i in (1, 2))
    assert same_images([one], [other], 3) and same_images([one], [], 3)
    assert not same_images([one], [other], 4) and not same_images([one], [], 4)


def test_embeddings_within_a_budget() -> None:
    """The least recently used ones go first; the newest stays, whatever it takes."""
    cache, computed = EmbeddingCache(100), []

    def rows(name: bytes, size: int = 10) -> None:
        def compute() -> np.ndarray:
            computed.append(name)
            return np.zeros((size, 1), np.float32)

        assert cache.rows(name, compute).shape == (size, 1)

    for name in (b"a", b"b", b"a", b"c", b"a", b"b"):
        rows(name)
    assert computed == [b"a", b"b", b"c", b"b"] and (len(cache), cache.nbytes) == (2, 80)
    rows(b"large", 50)
    assert (len(cache), cache.nbytes) == (1, 200)
    rows(b"large", 50)
    assert computed[-1] == b"large" and (cache.computed, cache.found) == (5, 3)
