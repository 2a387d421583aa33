"""The images of one request's prompt, and their rows while it is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError
from trigraph.runtime.execution.vision import Vision
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.prompt import ImagePrompt, PlacedImage


class PromptImages:
    """They are read when a prefill reaches them: not at all where a cache has the prompt up to behind them."""

    def __init__(
        self,
        vision: Vision | None = None,
        placed: Sequence[PlacedImage] = (),
        pixels: tuple[ResizedImage, ...] = (),
    ) -> None:
        self.placed = tuple(placed)
        """Where they are."""
        self._vision = vision
        self._pixels = pixels
        self._rows: dict[int, NDArray[np.float32]] = {}
        self.waiting = False
        """Whether nothing of the prompt can be computed before an image has been read."""
        self._awaited: int | None = None

    @classmethod
    def of(cls, vision: Vision | None, prompt: ImagePrompt | None) -> PromptImages:
        """The images of a prompt, if it has any. Raises TrigraphError where nothing reads them."""
        if prompt is None:
            return cls()
        if vision is None:
            raise TrigraphError(
                "the package has no vision tower, so prompts cannot have images; put the model's mmproj-*.gguf beside "
                "its file, and export it again"
            )
        return cls(vision, vision.placed(prompt), prompt.pixels)

    def reach(self, start: int, stop: int) -> int:
        """How far a prefill from `start` to `stop` can go now. The first image that is not read yet is read next."""
        awaited = None
        for number, image in enumerate(self.placed):
            if image.span.end > start and number not in self._rows and not self._ready(number):
                stop = max(start, min(stop, image.span.start))
                awaited = number
                break
        self._awaited = awaited
        self.waiting = start == stop
        return stop

    @property
    def reading(self) -> tuple[int, float] | None:
        """The number of the image that the prompt waits for, from 1 on, and how much of it is read, from 0 to 1.

        None where it waits for none. Any thread may ask.
        """
        number, vision = self._awaited, self._vision
        return None if number is None or vision is None else (number + 1, vision.progress(self._pixels[number]))

    def rows(self, start: int, stop: int) -> NDArray[np.float32] | None:
        """The rows of the image tokens at places `start` to `stop` - 1 [count, hidden]; None where there are none."""
        pieces = []
        for number, image in enumerate(self.placed):
            first, end = max(start, image.span.start), min(stop, image.span.end)
            if first < end:
                pieces.append(self._of(number)[first - image.span.start : end - image.span.start])
        return np.concatenate(pieces) if pieces else None

    def forget(self) -> None:
        """Gives up the rows; they are looked for again where they are needed again."""
        self._rows.clear()

    def _ready(self, number: int) -> bool:
        assert self._vision is not None  # there are images
        return self._vision.ready(self.placed[number], self._pixels[number])

    def _of(self, number: int) -> NDArray[np.float32]:
        if number not in self._rows:
            assert self._vision is not None  # there are images
            self._rows[number] = self._vision.rows(self.placed[number], self._pixels[number])
        return self._rows[number]
