"""Decodes and resizes images for `decoder.py`: requests on stdin, responses on stdout.

A request is a line of JSON and the bytes of a file; the response is a line of JSON and the bytes of the pixels. It
imports nothing else of the project, so it starts quickly; `limited/start.py` calls it.
"""

from __future__ import annotations

import io
import json
import math
import sys
import warnings
from typing import Any

try:
    from PIL import Image, UnidentifiedImageError
except ImportError as error:
    missing: str | None = error.name
else:
    missing = None

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
MOST_RATIO = 200
"""The largest ratio of the longer side of an image to the shorter."""

_ORIENTATION = 0x0112
_BAND = 512  # rows that transparency is taken from at a time


def main(memory: int) -> None:
    """Responds to requests until stdin ends, under a limit of `memory` bytes."""
    if missing is not None:
        _respond({"missing": missing})
        return
    warnings.simplefilter("ignore")  # of large images, which have a limit here
    Image.init()
    _respond({"ready": True})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        data = sys.stdin.buffer.read(request["bytes"])
        try:
            limits = request["pixels"], request["least"], request["most"]
            _respond(*_answer(*read(data, *limits, request["size"])))
        except MemoryError:
            _respond({"error": f"it takes more than {memory >> 20} MiB of memory"})
        except Exception as error:  # whatever a decoder may raise
            _respond({"error": " ".join(str(error).split())[:200] or type(error).__name__})
        del data  # before the next request arrives


def read(
    data: bytes, pixels: int, least: int, most: int, size: list[int] | None = None
) -> tuple[tuple[int, int], Image.Image]:
    """Height and width of a file's image, and the image itself, resized to an area from `least` to `most` pixels.

    Or to a `size`, height and width.
    It has RGB, stands upright, and what is transparent is white. Raises ValueError for an image of more than `pixels`,
    before it is decoded.
    """
    # WebP's decoder allocates its canvas when the file is opened; Pillow looks first, and refuses twice this number.
    Image.MAX_IMAGE_PIXELS = pixels // 2 if data[8:12] == b"WEBP" else None
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError("it is not a JPEG, PNG, WebP or GIF image, or its header is damaged") from None
    except Image.DecompressionBombError:
        raise ValueError(f"it has more pixels than the limit of {pixels}; make it smaller") from None
    if image.width * image.height > pixels:
        raise ValueError(
            f"it has {image.width} x {image.height} pixels, more than the limit of {pixels}; make it smaller"
        )
    check_sides(image.height, image.width)
    image.load()
    image = opaque(upright(image))
    rows, columns = size or smart_resize(image.height, image.width, 32, least, most)
    return (image.height, image.width), resize(image, rows, columns)


def check_sides(height: int, width: int) -> None:
    """Raises ValueError for sides of nothing, or that differ by more than a factor of 200."""
    if not 0 < max(height, width) <= MOST_RATIO * min(height, width):
        raise ValueError(f"it has {width} x {height} pixels; its sides may differ by a factor of {MOST_RATIO}")


def smart_resize(height: int, width: int, multiple: int, least: int, most: int) -> tuple[int, int]:
    """The height and width, multiples of a number, at which a model sees an image of `height` x `width`.

    As in Qwen's processors: each side is rounded, halves to even; where the area then is not from `least` to `most`,
    both sides are scaled, and rounded towards it.
    """
    rows, columns = (round(side / multiple) * multiple for side in (height, width))
    if rows * columns > most:
        shrink = math.sqrt(height * width / most)
        rows, columns = (max(multiple, math.floor(side / shrink / multiple) * multiple) for side in (height, width))
    elif rows * columns < least:
        grow = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * grow / multiple) * multiple for side in (height, width))
    return rows, columns


def resize(image: Image.Image, height: int, width: int) -> Image.Image:
    """An image stretched to a size, bicubic with antialiasing.

    The width comes first, in a call of its own: versions of Pillow choose the order of the passes differently, and so
    get other bytes.
    """
    bicubic = Image.Resampling.BICUBIC
    return image.resize((width, image.height), bicubic).resize((width, height), bicubic)


def upright(image: Image.Image) -> Image.Image:
    """An image turned as its EXIF data say; those that cannot be read say nothing."""
    turn = Image.Transpose
    turns = {
        2: turn.FLIP_LEFT_RIGHT, 3: turn.ROTATE_180, 4: turn.FLIP_TOP_BOTTOM, 5: turn.TRANSPOSE, 6: turn.ROTATE_270,
        7: turn.TRANSVERSE, 8: turn.ROTATE_90,
    }  # fmt: skip
    try:
        method = turns.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return image
    return image if method is None else image.transpose(method)


def opaque(image: Image.Image) -> Image.Image:
    """An image in RGB, on white."""
    if image.mode.startswith("I;16"):  # grey of 16 bits: the upper eight
        image = image.point(lambda value: value / 256).convert("L")
        image.info.pop("transparency", None)
    if not ("A" in image.getbands() or image.info.get("transparency") is not None):
        return image.convert("RGB")
    canvas = Image.new("RGB", image.size)
    for top in range(0, image.height, _BAND):
        band = image.crop((0, top, image.width, min(top + _BAND, image.height))).convert("RGBA")
        white = Image.new("RGBA", band.size, (255, 255, 255, 255))
        canvas.paste(Image.alpha_composite(white, band).convert("RGB"), (0, top))
    return canvas


def _answer(source: tuple[int, int], image: Image.Image) -> tuple[dict[str, Any], bytes]:
    return {"height": image.height, "width": image.width, "source": source}, image.tobytes()


def _respond(fields: dict[str, Any], content: bytes = b"") -> None:
    out = sys.stdout.buffer
    out.write(json.dumps({**fields, "bytes": len(content)}).encode() + b"\n" + content)
    out.flush()
