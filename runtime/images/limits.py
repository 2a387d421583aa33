"""How large images may be."""

from __future__ import annotations

from dataclasses import dataclass

from trigraph.models.checks import check
from trigraph.models.vision.config import TOKEN, VisionConfig

LEAST_TOKENS = 64
MOST_TOKENS = 16384
LARGEST = MOST_TOKENS + 256
"""Tokens of an image whose sides differ a lot."""


@dataclass(frozen=True)
class ImageLimits:
    """What one image may take."""

    tokens: int = 1024
    """Tokens that it is made smaller to, 64 to 16384. One whose sides differ a lot may take a few more than 64."""
    pixels: int = 64 << 20
    """Width times height of the file's image; larger ones are refused from the header."""
    bytes: int = 32 << 20
    """Size of the file."""
    seconds: float = 20.0
    """Time to decode and resize it."""

    def __post_init__(self) -> None:
        """Raises TrigraphError for values of the wrong type, or out of range."""
        check(
            "tokens of an image",
            self.tokens,
            int,
            lambda count: LEAST_TOKENS <= count <= MOST_TOKENS,
            f"from {LEAST_TOKENS} to {MOST_TOKENS}",
        )
        check("pixels of an image", self.pixels, int, lambda count: 0 < count <= 1 << 28, f"from 1 to {1 << 28}")
        check("bytes of an image", self.bytes, int, lambda count: 0 < count <= 1 << 30, f"from 1 to {1 << 30}")
        check("seconds of an image", self.seconds, float, lambda seconds: seconds > 0, "positive")

    def areas(self, tower: VisionConfig) -> tuple[int, int]:
        """The least and the largest area of a resized image, in pixels; the mmproj file may state limits of its own."""
        most = min(self.tokens * TOKEN * TOKEN, tower.max_pixels or MOST_TOKENS * TOKEN * TOKEN)
        return min(tower.min_pixels or LEAST_TOKENS * TOKEN * TOKEN, most), most


def tokens_of_images(tower: VisionConfig, limits: ImageLimits) -> tuple[int, int]:
    """Between how many tokens an image has; one whose sides differ a lot may have a few more."""
    least, most = limits.areas(tower)
    return least // TOKEN**2, most // TOKEN**2
