"""The images that a completion's prompt shows, as its receipt states them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trigraph.models.errors import TrigraphError, quote
from trigraph.models.rope_positions import ImageSpan
from trigraph.models.vision.config import TOKEN
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.limits import LARGEST
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.images.reader import ImageLike, ImageReader

MOST_IMAGES = 500
"""The most images of a receipt."""

_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class ShownImage:
    """One of them, resized."""

    start: int
    """The place of its first token in the prompt."""
    height: int
    """In tokens."""
    width: int
    sha256: str
    """The SHA-256 of its pixels: red, green and blue of each, row by row."""

    @property
    def tokens(self) -> int:
        return self.height * self.width

    @property
    def size(self) -> str:
        """In pixels."""
        return f"{self.width * TOKEN} x {self.height * TOKEN}"


@dataclass(frozen=True)
class Shown:
    """All of them, and what read them."""

    tower: str
    """A hash of the vision tower's weights."""
    images: tuple[ShownImage, ...]

    @classmethod
    def of(cls, prompt: ImagePrompt | None, tower: str | None) -> Shown | None:
        """The images of a prompt; None where it has none. Raises TrigraphError for more than a receipt can have."""
        if prompt is None or tower is None or not prompt.images:
            return None
        pairs = zip(prompt.images, prompt.pixels, strict=True)
        shown_images = cls(
            tower, tuple(ShownImage(at.start, at.height, at.width, _sha256(shown)) for at, shown in pairs)
        )
        shown_images.check()
        return shown_images

    def check(self) -> None:
        """Raises TrigraphError for values that no receipt has."""
        if not 1 <= len(self.images) <= MOST_IMAGES:
            raise TrigraphError(f"images has {len(self.images)}; where there are any, a receipt has 1 to {MOST_IMAGES}")
        for name, digest in [("tower", self.tower), *(("sha256", image.sha256) for image in self.images)]:
            if not _DIGEST.fullmatch(digest):
                raise TrigraphError(f"images: {name} is {quote(digest)}; it must have 64 hexadecimal digits")
        for image in self.images:
            if image.start < 0 or min(image.height, image.width) < 1 or image.tokens > LARGEST:
                raise TrigraphError(
                    f"images: one has {image.width} x {image.height} tokens at place {image.start}; it must have 1 to "
                    f"{LARGEST}"
                )

    def prompt(self, ids: Sequence[int], reader: ImageReader, given: Sequence[ImageLike]) -> ImagePrompt:
        """The prompt with the images that are given for it, which are resized as the receipt says.

        Raises TrigraphError unless they are those of the receipt, in order.
        """
        if len(given) != len(self.images):
            raise TrigraphError(
                f"the receipt is of a completion with {counted(len(self.images))}, and {counted(len(given))} given; "
                "give the file of each, in the order of the prompt"
            )
        pixels = []
        for number, (image, file) in enumerate(zip(self.images, given, strict=True), 1):
            resized = reader.read(file, f"image {number}", (image.height, image.width))
            if (digest := _sha256(resized)) != image.sha256:
                raise TrigraphError(self._other(number, digest))
            pixels.append(resized)
        spans = [ImageSpan(image.start, image.height, image.width) for image in self.images]
        return ImagePrompt(tuple(ids), tuple(spans), tuple(pixels))

    def _other(self, number: int, digest: str) -> str:
        """What is said of another image in the place of one; `digest` of it, in the size of that one."""
        elsewhere = [place for place, image in enumerate(self.images, 1) if image.sha256 == digest]
        if elsewhere:
            return f"image {number} is image {elsewhere[0]} of the receipt; give them in the order of the prompt"
        return (
            f"image {number} is not that of the receipt: at {self.images[number - 1].size} pixels, its SHA-256 is "
            f"{digest[:16]}..., and the receipt has {self.images[number - 1].sha256[:16]}...; it is another file, or "
            "another decoder has read it (of JPEG and lossy WebP they may differ)"
        )


def _sha256(image: ResizedImage) -> str:
    return hashlib.sha256(np.ascontiguousarray(image.pixels).data).hexdigest()


def counted(images: int) -> str:
    """A number of images in words."""
    return "one image" if images == 1 else f"{images or 'no'} images"
