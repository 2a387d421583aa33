"""Receipts of completions whose prompts show images: what they state, and that other images are told apart."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command import Run
from support.models.seeing import SeeingPackages, picture, prompt_of
from support.pictures.pictures import encode, pixels
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Receipt, Sampling, load
from trigraph.runtime.receipt.shown import Shown, ShownImage

FIRST, SECOND = encode(pixels(120, 200), "PNG"), encode(pixels(300, 90, 1), "PNG")
ASKED = Options(Sampling(0.9, seed=11), 24, ignore_eos=True, receipt=True)


@pytest.fixture(scope="module")
def engine(seeing: SeeingPackages) -> Iterator[Engine]:
    with load(seeing("tiny-moe", "Q8_0"), threads=1, context=512) as engine:
        yield engine


@pytest.fixture(scope="module")
def other(seeing: SeeingPackages) -> Iterator[Engine]:
    """What verifies: with other cuts, without drafts, and with another limit of an image's tokens."""
    package = seeing("tiny-moe", "Q8_0")
    with load(package, threads=1, context=512, chunk=7, speculation=False, image_tokens=4096) as engine:
        yield engine


@pytest.fixture(scope="module")
def receipt(engine: Engine) -> Receipt:
    reply = engine.chat().say("Which?", ASKED, images=[FIRST, SECOND])
    assert any(reply)
    return engine.receipt(reply.request)


def test_what_it_states(engine: Engine, receipt: Receipt) -> None:
    assert receipt.images is not None and receipt.prompt is not None
    assert receipt.images.tower == engine.tower_sha256
    pad = engine.tokenizer.id_of("<|image_pad|>")
    for image, file in zip(receipt.images.images, (FIRST, SECOND), strict=True):
        shown = engine.model.images.read(file)
        assert image.sha256 == hashlib.sha256(shown.pixels.tobytes()).hexdigest()
        assert (image.height, image.width) == (shown.height, shown.width)
        assert {*receipt.prompt[image.start : image.start + image.tokens]} == {pad}
    fields = receipt.as_json()
    assert fields["version"] == 2 and [*fields["images"]] == ["tower", "images"]
    assert Receipt.parse(receipt.as_text()) == receipt


def test_it_verifies_with_its_images(engine: Engine, other: Engine, receipt: Receipt) -> None:
    assert other.verify(receipt, images=[FIRST, SECOND]).equal
    assert engine.verify(receipt, images=[pixels(120, 200), SECOND]).equal
    private = Receipt.parse(receipt.private().as_text())
    assert private.images == receipt.images
    assert other.verify(private, receipt.prompt, [FIRST, SECOND]).equal


def test_the_limit_that_it_was_made_with_does_not_matter(seeing: SeeingPackages, other: Engine) -> None:
    large = encode(pixels(700, 500), "PNG")
    with load(seeing("tiny-moe", "Q8_0"), threads=1, context=512, image_tokens=100) as small:
        reply = small.chat().say("Which?", ASKED, images=[large])
        assert any(reply)
        made = small.receipt(reply.request)
    assert made.images is not None and made.images.images[0].tokens <= 100
    assert other.model.images.read(large).tokens > 100
    assert other.verify(made, images=[large]).equal


def test_other_images_are_told_apart(other: Engine, receipt: Receipt) -> None:
    changed = pixels(120, 200)
    changed[60, 60] += 9
    refused: list[tuple[list[Any], str]] = [
        ([], "is of a completion with 2 images, and no images given; give the file of each, in the order"),
        ([FIRST], "2 images, and one image given"),
        ([FIRST, SECOND, SECOND], "2 images, and 3 images given"),
        ([changed, SECOND], "image 1 is not that of the receipt: at 352 x 224 pixels, its SHA-256 is"),
        ([FIRST, FIRST], "image 2 is not that of the receipt: at "),
        ([b"no image", SECOND], "image 1 cannot be read: it is not a JPEG"),
    ]
    for images, sentence in refused:
        with pytest.raises(TrigraphError, match=sentence):
            other.verify(receipt, images=images)


def test_images_in_another_order(engine: Engine) -> None:
    one, two = picture((2, 3), 1), picture((2, 3), 2)
    request = engine.submit(prompt_of(4, one, 2, two, 5), ASKED)
    request.result()
    made = engine.receipt(request)
    assert engine.verify(made, images=[one, two]).equal
    with pytest.raises(TrigraphError, match="image 1 is image 2 of the receipt; give them in the order of the prompt"):
        engine.verify(made, images=[two, one])


def test_another_tower_and_none(seeing: SeeingPackages, packages: Any, engine: Engine, receipt: Receipt) -> None:
    with (
        load(seeing("tiny-moe", "Q8_0", "Q8_0"), threads=1, context=512) as another,
        pytest.raises(TrigraphError, match=r"were read by the vision tower [0-9a-f]{16}\.\.\., and this model has"),
    ):
        another.verify(receipt, images=[FIRST, SECOND])
    with (
        load(packages("tiny-moe", "Q8_0"), threads=1, context=512) as blind,
        pytest.raises(TrigraphError, match="reads text only"),
    ):
        blind.verify(receipt, images=[FIRST, SECOND])
    request = engine.submit(prompt_of(9), ASKED)
    request.result()
    text = engine.receipt(request)
    assert text.as_json()["version"] == 1 and "images" not in text.as_json()
    with pytest.raises(TrigraphError, match="without images; leave them out"):
        engine.verify(text, images=[FIRST])


def moved(place: int, **fields: Any) -> Callable[[Shown], Shown]:
    def change(shown: Shown) -> Shown:
        images = [*shown.images]
        images[place] = dataclasses.replace(images[place], **fields)
        return dataclasses.replace(shown, images=tuple(images))

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (moved(0, sha256="0"), "sha256 is '0'; it must have 64 hexadecimal digits"),
        (moved(0, start=-1), "tokens at place -1"),
        (moved(1, height=0), "x 0 tokens"),
        (moved(1, height=1 << 40, width=1 << 40), "it must have 1 to 16640"),
        (lambda shown: Shown("x", shown.images), "tower is 'x'"),
        (lambda shown: Shown(shown.tower, ()), "images has 0"),
        (lambda shown: Shown(shown.tower, shown.images * 3000), "more objects or fields than a receipt"),
    ],
)
def test_what_no_receipt_has(receipt: Receipt, change: Callable[[Shown], Shown], sentence: str) -> None:
    assert receipt.images is not None
    with pytest.raises(TrigraphError, match=sentence):
        Receipt.parse(dataclasses.replace(receipt, images=change(receipt.images)).as_text())


@pytest.mark.parametrize("start", [0, 3, 10_000])
def test_a_moved_image_does_not_verify(other: Engine, receipt: Receipt, start: int) -> None:
    assert receipt.images is not None
    change = moved(1 if start > 9 else 0, start=start)
    forged = Receipt.parse(dataclasses.replace(receipt, images=change(receipt.images)).as_text())
    try:
        assert not other.verify(forged, images=[FIRST, SECOND]).equal
    except TrigraphError as error:
        assert start == 10_000 and "reach beyond its tokens" in str(error)


def test_versions_go_with_images(receipt: Receipt) -> None:
    fields = receipt.as_json()
    for changed in (fields | {"version": 1}, {name: fields[name] for name in fields if name != "images"}):
        sealed = {name: changed[name] for name in changed if name not in ("prompt", "sha256", "signature")}
        content = json.dumps(sealed, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(TrigraphError, match=r"has fields that receipts of version [12] do not have"):
            Receipt.parse(json.dumps(changed | {"sha256": hashlib.sha256(content).hexdigest()}))


def test_on_the_command_line(trigraph: Run, seeing: SeeingPackages, tmp_path: Path) -> None:
    package, file, made = seeing("tiny-moe", "Q8_0"), tmp_path / "a.png", tmp_path / "receipt.json"
    file.write_bytes(FIRST)
    asked = ("-p", "What?", "--image", file, "-n", 6, "-s", 3, "-t", 1, "-c", 512)
    assert trigraph("run", package, *asked, "--receipt", made).status == 0
    assert trigraph("verify", made, package, "--image", file).out.startswith("equal: ")
    missing = trigraph("verify", made, package)
    assert missing.status == 2 and "is of a completion with one image; give each with --image" in missing.err
    file.write_bytes(SECOND)
    wrong = trigraph("verify", made, package, "--image", file)
    assert wrong.status == 2 and "image 1 is not that of the receipt" in wrong.err


def test_a_shown_image_names_its_size() -> None:
    assert ShownImage(0, 2, 3, "0" * 64).size == "96 x 64"
