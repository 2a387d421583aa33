"""Files of images from strangers: what is refused, with which words, and that the process goes on."""

from __future__ import annotations

import gc
import io
import struct
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from support.pictures.pictures import encode, every_kind, oriented, pixels
from trigraph.models.errors import TrigraphError
from trigraph.models.vision.config import VisionConfig
from trigraph.runtime.images import decoder as decoder_module
from trigraph.runtime.images import decoder_process
from trigraph.runtime.images.decoder import ImageDecoder, ImageError
from trigraph.runtime.images.limits import ImageLimits

TOWER = VisionConfig("tower", 1, 96, 4, 128, 256, 8, 1e-6, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
KINDS = every_kind()


@pytest.fixture(scope="module")
def decoder() -> ImageDecoder:
    return ImageDecoder(TOWER)


def refused(decoder: ImageDecoder, data: bytes, *words: str) -> None:
    """The file is refused in one line with each of `words`, and the process goes on."""
    with pytest.raises(ImageError) as caught:
        decoder.decode(data, "image 2")
    text = str(caught.value)
    assert text.startswith("image 2 cannot be read: ") and "\n" not in text and len(text) < 400
    for word in words:
        assert word in text, text
    assert decoder.decode(KINDS["png"]).tokens == 70


@pytest.mark.parametrize("kind", KINDS)
def test_the_process_decodes(decoder: ImageDecoder, kind: str) -> None:
    found = decoder.decode(KINDS[kind])
    source, expected = decoder_process.read(KINDS[kind], 1 << 26, 64 << 10, 1 << 20)
    assert found.source == source == ((56, 40) if kind == "jpeg turned" else (40, 56))
    np.testing.assert_array_equal(found.pixels, np.asarray(expected))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(decoder: ImageDecoder, orientation: int) -> None:
    """As Pillow's own `exif_transpose` turns it."""
    data = oriented(Image.fromarray(pixels(64, 96)), orientation)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    size = decoder_process.smart_resize(expected.height, expected.width, 32, *decoder.limits.areas(TOWER))
    np.testing.assert_array_equal(decoder.decode(data).pixels, np.asarray(decoder_process.resize(expected, *size)))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG file of grey that says to be of a size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def webp(width: int, height: int) -> bytes:
    """A WebP file whose canvas is of a size."""
    canvas = b"\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + canvas + encode(pixels(16, 16), "WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


NOT_ONE = "not a JPEG, PNG, WebP or GIF image"
BAD: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", [NOT_ONE]),
    "text": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", [NOT_ONE]),
    "another format": (encode(pixels(9, 9), "BMP"), [NOT_ONE]),
    "TIFF": (encode(pixels(9, 9), "TIFF"), [NOT_ONE]),
    "cut off JPEG": (KINDS["jpeg"][:-200], ["truncated"]),
    "cut off PNG": (KINDS["png"][:-200], []),
    "narrow": (encode(pixels(1, 201), "PNG"), ["201 x 1", "factor of 200"]),
    "PNG bomb": (png(60000, 60000, zlib.compress(bytes(1 << 20))), ["60000 x 60000", "limit of 67108864"]),
    "GIF bomb": (b"GIF89a" + struct.pack("<HH", 65535, 65535) + KINDS["gif"][10:], ["65535 x 65535", "limit"]),
    "WebP bomb": (webp(16384, 16384), ["limit of 67108864"]),
    "JPEG bomb": (
        KINDS["jpeg"].replace(struct.pack(">HH", 40, 56), struct.pack(">HH", 65500, 65500)),
        ["65500 x 65500", "limit"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(decoder: ImageDecoder, case: str) -> None:
    data, words = BAD[case]
    refused(decoder, data, *words)


def test_the_header_is_enough(decoder: ImageDecoder) -> None:
    """A bomb is refused without being decoded: its data are damaged, and nobody notices."""
    refused(decoder, png(50000, 50000, b"damaged"), "50000 x 50000", "limit")


def test_too_many_bytes() -> None:
    small = ImageDecoder(TOWER, ImageLimits(bytes=100))
    with pytest.raises(ImageError, match=r"it has \d+ bytes, more than the limit of 100; make it smaller"):
        small.decode(KINDS["png"])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory")
def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "_MAX_MEMORY", 200 << 20)
    little = ImageDecoder(TOWER)
    refused(little, encode(Image.new("RGBA", (7000, 7000)), "PNG"), "of memory")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_memory_of_the_largest_images(decoder: ImageDecoder) -> None:
    """The limit is enough for them, also where every pixel is transparent, and what they took is given back."""
    turned = oriented(Image.new("RGB", (8000, 8000), "red"), 6)
    for data in (turned, encode(Image.new("RGBA", (8000, 8000)), "PNG"), encode(Image.new("LA", (8100, 8100)), "PNG")):
        assert decoder.decode(data).tokens == 1024
    for lane in (decoder._quick, decoder._slow):
        if lane.process is not None and not lane.process.ended:
            status = Path(f"/proc/{lane.process.process.pid}/statm").read_text().split()
            assert int(status[1]) * 4096 < 150 << 20


@pytest.mark.slow
def test_time_is_limited() -> None:
    slow = ImageDecoder(TOWER, ImageLimits(seconds=60))
    slow.decode(KINDS["png"])
    object.__setattr__(slow, "limits", ImageLimits(seconds=0.001))
    with pytest.raises(ImageError, match=r"ran for more than 0\.001 s"):
        slow.decode(encode(pixels(2000, 2000), "PNG", compress_level=1))


def scanned(count: int) -> bytes:
    """A progressive JPEG of many pixels whose last scan comes `count` times: each takes some 50 ms."""
    data = encode(Image.new("L", (8000, 8000)), "JPEG", progressive=True)[:-2]
    return data + count * data[data.rindex(b"\xff\xda") :] + b"\xff\xd9"


def test_an_image_that_takes_long_holds_up_no_other() -> None:
    """One of 300 KB took all of the time that an image may take, and the next one waited for it."""
    decoder = ImageDecoder(TOWER, ImageLimits(seconds=3000))
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(decoder.decode, scanned(100_000))
        while not decoder._slow.lock.locked() or decoder._slow.process is None:
            time.sleep(0.01)
        assert decoder.decode(KINDS["png"]).tokens == 70
        assert not late.done()
        decoder._slow.process.end()
        with pytest.raises(ImageError, match="its process crashed"):
            late.result()


def test_a_crash_is_mended(decoder: ImageDecoder) -> None:
    decoder.decode(KINDS["png"])
    assert decoder._quick.process is not None
    first = decoder._quick.process
    first.process.kill()
    first.process.wait()
    assert decoder.decode(KINDS["png"]).tokens == 70 and decoder._quick.process is not first


def test_the_process_is_kept_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ImageDecoder(TOWER)
    own.decode(KINDS["png"])
    assert own._quick.process is not None
    process = own._quick.process.process
    refused(own, b"x")
    assert own._quick.process.process is process
    del own
    gc.collect()
    for _ in range(1000):
        if process.poll() is not None:
            break
        time.sleep(0.01)
    assert process.poll() is not None


def test_pillow_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = Path(decoder_process.__file__).read_text().replace("from PIL import Image", "from NOTHING import Image")
    (tmp_path / "decoder_process.py").write_text(program)
    monkeypatch.setattr(decoder_module, "_PROGRAM", tmp_path / "decoder_process.py")
    with pytest.raises(ImageError, match=r"images need Pillow: pip install pillow"):
        ImageDecoder(TOWER).decode(KINDS["png"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": 63}, "tokens of an image is 63; it must be from 64 to 16384"),
        ({"tokens": True}, "tokens of an image is True; it must be a whole number"),
        ({"pixels": 0}, "pixels of an image is 0"),
        ({"bytes": 1 << 31}, "bytes of an image is 2147483648"),
        ({"seconds": 0.0}, "seconds of an image is 0.0; it must be positive"),
    ],
)
def test_limits_out_of_range(fields: dict[str, float], message: str) -> None:
    with pytest.raises(TrigraphError, match=message):
        ImageLimits(**fields)  # type: ignore[arg-type]
