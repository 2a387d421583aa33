"""Positions of three axes, time, row and column (M-RoPE), of which text uses equal ones.

A section of the rotary pairs turns by each axis. Bai et al., "Qwen2-VL" (arXiv 2409.12191); interleaved as in Qwen3-VL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trigraph.models.architecture import ARCHITECTURES
from trigraph.models.config import ModelConfig
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.keys import MAX_SIZE, Keys

Sections = tuple[int, int, int]
"""Rotary pairs of each axis."""

DEFAULT_SECTIONS = (11, 11, 10)


@dataclass(frozen=True)
class ImageSpan:
    """The tokens of one image in a sequence: height x width of them, row by row."""

    start: int
    """The place of the first one, in tokens."""
    height: int
    width: int

    @property
    def tokens(self) -> int:
        return self.height * self.width

    @property
    def end(self) -> int:
        """The place of the token after the image."""
        return self.start + self.tokens

    @property
    def shift(self) -> int:
        """The difference between position and place that it adds for the tokens after it; never positive."""
        return max(self.height, self.width) - self.tokens


def rope_sections(file: GGUFFile, config: ModelConfig) -> Sections:
    """The sections that a model's file states, or those of all published models.

    Raises TrigraphError for anything but three numbers that are not negative.
    """
    if not ARCHITECTURES[config.architecture].rope_sections:
        return DEFAULT_SECTIONS
    keys = Keys(file, f"{config.architecture}.")
    sections = keys.array("rope.dimension_sections", "iu", "an array of integers")
    if sections is None:
        return DEFAULT_SECTIONS
    if len(sections) < 3 or ((sections < 0) | (sections > MAX_SIZE)).any() or sections[3:].any():
        raise keys.error(
            "rope.dimension_sections",
            f"is {sections[:8].tolist()}, expected sections of three axes and then zeros; convert the model again",
        )
    time, row, column = sections[:3].tolist()
    return time, row, column


def axes_of_pairs(pairs: int, sections: Sections) -> npt.NDArray[np.int64]:
    """The axis that turns each rotary pair: the three in turn as far as their sections reach, then time. [pairs]"""
    pair = np.arange(pairs)
    return np.where(pair < 3 * np.array(sections)[pair % 3], pair % 3, 0)


def positions_between(start: int, stop: int, images: Iterable[ImageSpan] = ()) -> npt.NDArray[np.int64]:
    """The positions of the tokens at places `start` to `stop` - 1 of a sequence. [3, stop - start]

    `images` come in order. In one that starts at position p, row r and column c have (p, p + r, p + c); the token after
    it has p + max(height, width).
    """
    positions = np.tile(np.arange(start, stop), (3, 1))
    shift = 0
    for image in images:
        if image.start >= stop:
            break
        first, end = max(image.start, start), min(image.end, stop)
        if first < end:
            row, column = np.divmod(np.arange(first, end) - image.start, image.width)
            here = image.start + shift + np.stack([np.zeros_like(row), row, column])
            positions[:, first - start : end - start] = here
        shift += image.shift
        positions[:, max(image.end, start) - start :] += image.shift
    return positions
