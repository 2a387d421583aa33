"""From pixels to patches: transformers' image processor, and recorded bytes of three Pillow versions."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from support.pictures.pictures import encode, every_kind, pixels
from trigraph.models.vision.config import VisionConfig
from trigraph.models.vision.grid import patch_places
from trigraph.runtime.images import decoder_process
from trigraph.runtime.images.image import ResizedImage, prefix_keys
from trigraph.runtime.images.limits import ImageLimits

TOWER = VisionConfig("tower", 1, 96, 4, 128, 256, 8, 1e-6, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
# SHA-256, of Pillow 11.3 and 12.3 resizing in one call as well.
RECORDED = "8951ccd959ea9e6809c375beed8abfcafcae891af2a54d05955ccf616b705adf"
Patches = npt.NDArray[np.float32]


def ours(data: bytes, tokens: int = 1024) -> ResizedImage:
    """In this process."""
    least, most = ImageLimits(tokens).areas(TOWER)
    source, image = decoder_process.read(data, 1 << 26, least, most)
    return ResizedImage(np.asarray(image), source)


@pytest.fixture(scope="module")
def processor() -> Any:
    """transformers' processor that resizes with Pillow; the width first, whatever Pillow would do."""
    pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as module

    theirs: Any = module.Qwen2VLImageProcessorPil

    class WidthFirst(theirs):  # type: ignore[misc]
        def resize(self, image: Any, size: Any, resample: Any, factor: int, **kwargs: Any) -> Any:
            rows, columns = image.shape[1:]
            height, width = module.smart_resize(rows, columns, factor, size.shortest_edge, size.longest_edge)
            found = Image.fromarray(image.transpose(1, 2, 0))
            for one in ((width, found.height), (width, height)):
                found = found.resize(one, resample)
            return np.asarray(found).transpose(2, 0, 1)

    return WidthFirst(patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def theirs(processor: Any, image: Image.Image, tokens: int = 1024) -> tuple[Patches, tuple[int, int]]:
    """Rows of patches without the second frame, which is equal, and their grid."""
    size = {"shortest_edge": 64 * 1024, "longest_edge": tokens * 1024}
    found = processor(image, size=size, return_tensors="np")
    rows = found["pixel_values"].reshape(-1, 3, 2, 256)
    np.testing.assert_array_equal(rows[:, :, 0], rows[:, :, 1])
    _, height, width = found["image_grid_thw"][0].tolist()
    return rows[:, :, 0].reshape(len(rows), 768), (height, width)


SIZES = [
    (64, 96), (70, 100), (33, 211), (17, 40), (480, 333), (300, 60), (1, 1), (1, 200), (200, 1), (80, 48), (16, 16),
    (47, 1009), (1200, 31), (256, 256), (777, 1033), (2048, 1024), (15, 2999),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tokens", [64, 100, 1024, 16384])
def test_sizes(processor: Any, size: tuple[int, int], tokens: int) -> None:
    """Every number is equal."""
    image = pixels(*size)
    found = ours(encode(image, "PNG"), tokens)
    expected, grid = theirs(processor, Image.fromarray(image), tokens)
    assert found.grid == grid and found.source == size
    np.testing.assert_array_equal(found.patches(TOWER), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", set(every_kind()) - {"jpeg turned", "png 16 bits"})
def test_kinds_of_files(processor: Any, kind: str) -> None:
    """Colours, palettes, transparency on white, and the first frame."""
    data = every_kind()[kind]
    expected, _ = theirs(processor, Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(ours(data).patches(TOWER), expected)


def test_grey_of_16_bits() -> None:
    """Its upper eight bits, where Pillow's conversion would make almost all of it white."""
    data = every_kind()["png 16 bits"]
    grey = np.asarray(Image.open(io.BytesIO(data)))
    (height, width), image = decoder_process.read(data, 1 << 20, 1, 1 << 24)
    expected = decoder_process.resize(Image.fromarray((grey >> 8).astype(np.uint8)).convert("RGB"), *image.size[::-1])
    assert (height, width) == grey.shape and np.asarray(image).std() > 20
    np.testing.assert_array_equal(np.asarray(image), np.asarray(expected))


def test_sizes_as_transformers_computes_them(processor: Any) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    rng = np.random.default_rng(3)
    for _ in range(20000):
        height, width = (int(side) for side in np.exp(rng.uniform(0, 9, 2)))
        if max(height, width) > 200 * min(height, width):
            with pytest.raises(ValueError, match="factor of 200"):
                decoder_process.check_sides(height, width)
            continue
        decoder_process.check_sides(height, width)
        least, most = ImageLimits(int(rng.integers(64, 16385))).areas(TOWER)
        found = decoder_process.smart_resize(height, width, 32, least, most)
        assert found == smart_resize(height, width, 32, least, most)


def test_recorded_bytes() -> None:
    """The same with Pillow 11.3, 12.3 and 13.0: the pixels are what an answer depends on."""
    found = hashlib.sha256()
    rng = np.random.default_rng(9)
    for _ in range(40):
        height, width = (int(side) for side in rng.integers(20, 700, 2))
        noise = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        size = decoder_process.smart_resize(height, width, 32, 64 << 10, 200 << 10)
        found.update(decoder_process.resize(noise, *size).tobytes())
    assert found.hexdigest() == RECORDED


def test_patches_are_in_the_order_of_their_places() -> None:
    image = np.zeros((64, 96, 3), np.uint8)
    rows, columns = np.mgrid[:4, :6]
    image[..., 0] = np.kron(rows, np.ones((16, 16)))
    image[..., 1] = np.kron(columns, np.ones((16, 16)))
    found = ResizedImage(image, (64, 96)).patches(TOWER).reshape(-1, 3, 256)
    places = np.round((found[:, :2, 0] + 1) / 2 * 255).T
    np.testing.assert_array_equal(places, patch_places(4, 6))
    assert (found == found[:, :, :1]).all()


def test_limits_of_an_mmproj_file() -> None:
    assert ImageLimits().areas(TOWER) == (64 * 1024, 1024 * 1024)
    assert ImageLimits(16384).areas(replace(TOWER, min_pixels=4096, max_pixels=99999)) == (4096, 99999)
    assert ImageLimits(64).areas(replace(TOWER, min_pixels=1 << 20)) == (64 * 1024, 64 * 1024)


def test_digest() -> None:
    image = ResizedImage(pixels(64, 96), (70, 100))
    same = ResizedImage(pixels(64, 96), (1, 1))
    other = pixels(64, 96)
    other[63, 95, 2] ^= 1
    found = image.digest("a")
    assert len(found) == 32 and same.digest("a") == found
    turned = ResizedImage(pixels(64, 96).reshape(96, 64, 3), (70, 100))
    assert len({found, image.digest("b"), ResizedImage(other, (70, 100)).digest("a"), turned.digest("a")}) == 4


def test_prefix_keys() -> None:
    keys = prefix_keys(bytes(32), 1000)
    assert keys.dtype == np.int32 and (keys < 0).all() and len(set(keys.tolist())) == 1000
    np.testing.assert_array_equal(prefix_keys(bytes(32), 9), keys[:9])
    assert (prefix_keys(b"\1" + bytes(31), 9) != keys[:9]).all()
