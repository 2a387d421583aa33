"""Images of every format that is read, made by Pillow from a seed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]


def pixels(height: int, width: int, seed: int = 0, channels: int = 3) -> Pixels:
    """A smooth image with some noise, [height, width, channels]."""
    rng = np.random.default_rng([seed, height, width])
    y, x = np.mgrid[:height, :width] / 37
    waves = [np.sin(x * rng.uniform(0.2, 3) + y * rng.uniform(0.2, 3)) for _ in range(channels)]
    noise = rng.normal(0, 9, (height, width, channels))
    return np.clip(128 + 100 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


def encode(image: Image.Image | Pixels, kind: str, **options: Any) -> bytes:
    """The bytes of a file of Pillow's format `kind`."""
    out = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(out, kind, **options)
    return out.getvalue()


def oriented(image: Image.Image, orientation: int) -> bytes:
    """A JPEG file whose EXIF data have an orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, "JPEG", exif=exif, quality=95)


def every_kind(height: int = 40, width: int = 56) -> dict[str, bytes]:
    """A file for each way in which an image may be stored."""
    colour, clear = pixels(height, width), pixels(height, width, channels=4)
    image = Image.fromarray(colour)
    palette = image.quantize(17)
    frames = [image, Image.fromarray(pixels(height, width, 1))]
    grey = (pixels(height, width, channels=1)[..., 0].astype(np.uint16) << 8) + 77
    return {
        "jpeg": encode(colour, "JPEG"),
        "jpeg progressive": encode(colour, "JPEG", progressive=True, quality=95, subsampling=0),
        "jpeg grey": encode(image.convert("L"), "JPEG"),
        "jpeg cmyk": encode(image.convert("CMYK"), "JPEG"),
        "jpeg turned": oriented(image, 6),
        "png": encode(colour, "PNG"),
        "png transparent": encode(clear, "PNG"),
        "png grey transparent": encode(Image.fromarray(clear).convert("LA"), "PNG"),
        "png palette": encode(palette, "PNG"),
        "png palette transparent": encode(palette, "PNG", transparency=3),
        "png one colour transparent": encode(image, "PNG", transparency=tuple(map(int, colour[3, 4]))),
        "png bits": encode(image.convert("1"), "PNG"),
        "png 16 bits": encode(Image.fromarray(grey), "PNG"),
        "webp": encode(colour, "WEBP"),
        "webp lossless transparent": encode(clear, "WEBP", lossless=True),
        "webp animated": encode(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        "gif": encode(image, "GIF"),
        "gif transparent": encode(palette, "GIF", transparency=2),
        "gif animated": encode(frames[0], "GIF", save_all=True, append_images=frames[1:]),
    }
