"""Images in the forms that programs have them, and messages with images in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.pictures.pictures import encode, every_kind, oriented, pixels
from trigraph.models.errors import TrigraphError
from trigraph.models.vision.config import VisionConfig
from trigraph.runtime.images.decoder import ImageError
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.limits import ImageLimits
from trigraph.runtime.images.reader import ImageReader
from trigraph.runtime.images.stored import as_json, from_json

TOWER = VisionConfig("tower", 1, 96, 4, 128, 256, 8, 1e-6, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.fixture(scope="module")
def reader() -> ImageReader:
    return ImageReader(TOWER)


@pytest.mark.parametrize("shape", [(40, 56, 3), (40, 56, 4), (40, 56)])
def test_every_form_is_the_same_image(reader: ImageReader, tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = pixels(40, 56, channels=4)[..., : shape[2]] if len(shape) == 3 else pixels(40, 56)[..., 0]
    image = Image.fromarray(array)
    (tmp_path / "a.png").write_bytes(data := encode(image, "PNG"))
    expected = reader.read(data)
    for given in (tmp_path / "a.png", str(tmp_path / "a.png"), bytearray(data), image, array, array[:], expected):
        found = reader.read(given)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.pixels, expected.pixels)
        assert found.source == (40, 56)


def test_an_image_of_pillow_stands_upright(reader: ImageReader) -> None:
    data = oriented(Image.fromarray(pixels(64, 96)), 6)
    import io

    np.testing.assert_array_equal(reader.read(Image.open(io.BytesIO(data))).pixels, reader.read(data).pixels)


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV", "LAB", "F", "I", "LA", "P", "1"])
def test_modes_of_pillow(reader: ImageReader, mode: str) -> None:
    image = Image.fromarray(pixels(40, 56))
    image = image.convert("RGB").convert("L").convert(mode) if mode in ("F", "I") else _converted(image, mode)
    expected = reader.read(image.convert("RGB"))
    np.testing.assert_array_equal(reader.read(image).pixels, expected.pixels)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if mode != "LAB":
        return image.convert(mode)
    from PIL import ImageCms

    made = ImageCms.profileToProfile(
        image, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
    )
    assert made is not None
    return made


def test_read_once(reader: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ImageReader(TOWER, cache_bytes=2 * 64 * 1024 * 3 + 100_000)
    kinds = [*every_kind().values()][:4]
    first = own.read(kinds[0])
    assert own.read(kinds[0]) is first
    for data in kinds[1:]:
        own.read(data)
    assert own.read(kinds[0]) is not first and own.read(kinds[3]) is own.read(kinds[3])
    assert own._held <= own._cache_bytes
    assert ImageReader(TOWER, cache_bytes=0).read(kinds[0]).tokens == first.tokens


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nothing.png", r"'nothing.png' cannot be read: No such file or directory; give the name of a file"),
        ("https://example.org/a.png", r"cannot be read: No such file .*; download it first: nothing is fetched"),
        ("a\0b", r"cannot be read: embedded null byte; give the name of a file"),
        (".", r"'.' cannot be read: Is a directory"),
        (b"hello", r"image 7 cannot be read: it is not a JPEG, PNG, WebP or GIF image"),
        (7, r"image 7 is 7; give a path, the bytes of a file, an image of Pillow, or a NumPy array"),
        (None, r"image 7 is None; give a path"),
        (np.zeros((4, 4, 3), np.float32), r"image 7 is an array of float32 \[4, 4, 3\]; it must be uint8 with the"),
        (np.zeros((4, 4, 2), np.uint8), r"is an array of uint8 \[4, 4, 2\]"),
        (np.zeros((0, 4, 3), np.uint8), r"is an array of uint8 \[0, 4, 3\]"),
        (np.zeros(4, np.uint8), r"is an array of uint8 \[4\]"),
        (np.zeros((1, 900, 3), np.uint8), r"image 7 cannot be read: it has 900 x 1 pixels; its sides may differ"),
    ],
)
def test_refused(reader: ImageReader, given: Any, message: str) -> None:
    with pytest.raises(TrigraphError, match=message):
        reader.read(given, "image 7")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ImageError, match=r"it has 101 bytes, more than the limit of 100; make it smaller"):
        ImageReader(TOWER, ImageLimits(bytes=100)).read(tmp_path / "large")


def test_messages_as_json(reader: ImageReader) -> None:
    image = reader.read(pixels(40, 56))
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": "A wave."},
    ]
    found: list[Any] = from_json(json.loads(json.dumps(as_json(messages))))
    assert (
        found[0] == messages[0]
        and found[2] == messages[2]
        and found[1]["content"][1]
        == {
            "type": "text",
            "text": "What?",
        }
    )
    back = found[1]["content"][0]["image"]
    assert isinstance(back, ResizedImage) and back.source == image.source
    np.testing.assert_array_equal(back.pixels, image.pixels)


@pytest.mark.parametrize(
    "change",
    [
        {"height": 0}, {"height": -1}, {"width": 1 << 20}, {"width": 1.0}, {"height": None}, {"source": [1]},
        {"source": "ab"}, {"pixels": "AAAA"}, {"pixels": "?"}, {"pixels": None}, {"pixels": ""}, {"height": 1},
    ],
)  # fmt: skip
def test_damaged_json(reader: ImageReader, change: dict[str, Any]) -> None:
    part = {"type": "image", "image": reader.read(pixels(40, 56))}
    (message,) = as_json([{"role": "user", "content": [part]}])
    message["content"][0]["image"] |= change
    with pytest.raises(ValueError):
        from_json([message])


def test_images_that_outgrow_a_file(reader: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.images.stored._MOST_CHARACTERS", 1000)
    part = {"type": "image", "image": reader.read(pixels(40, 56))}
    with pytest.raises(TrigraphError, match=r"the images of the conversation take [\d,]+ bytes, and a file keeps at"):
        as_json([{"role": "user", "content": [part]}])
