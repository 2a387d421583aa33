"""Packages of small models with a vision tower, and prompts with images for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from support.models.drafters import drafter_of
from support.pictures.pictures import pixels
from trigraph.exporter import ExportOptions, export
from trigraph.models.rope_positions import ImageSpan
from trigraph.models.synth import write_synthetic_mmproj
from trigraph.runtime import Engine
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.prompt import ImagePrompt, image_keys
from trigraph.runtime.state.sequence import Sequence as Tokens

Synthetic = Callable[[str, str], Path]
Size = tuple[int, int]
"""Of an image, in tokens."""


class SeeingPackages:
    """`packages("tiny-moe", "F32")` -> folder, made once; `source` gives the model, whose folder has no tower.

    `drafter="dflash2"` adds a random block drafter of that kind.
    """

    def __init__(self, folder: Path, source: Synthetic) -> None:
        self._folder, self._source = folder, source

    def tower(self, geometry: str, quant: str = "F32") -> Path:
        """The mmproj file of a small model."""
        path = self._folder / f"mmproj-{geometry}-{quant}.gguf"
        if not path.exists():
            write_synthetic_mmproj(f"mmproj-{geometry}", path, quant=quant)
        return path

    def __call__(self, geometry: str, quant: str, tower: str = "F32", **options: Any) -> Path:
        """The package's folder, exported at the first call with these arguments."""
        out = self._folder / "-".join((geometry, quant, tower, *map(str, options.values())))
        if not out.exists():
            source, given = self._source(geometry, quant), {"weights": "reference"} | options
            if (kind := given.pop("drafter", None)) is not None:
                given["draft_model"] = drafter_of(source, self._folder / f"dflash-{geometry}-{quant}-{kind}.gguf", kind)
            export(source, out, ExportOptions(mmproj=self.tower(geometry, tower), **given))
        return out


def picture(size: Size, seed: int = 0) -> ResizedImage:
    """An image of so many tokens."""
    height, width = size
    return ResizedImage(pixels(32 * height, 32 * width, seed), (32 * height, 32 * width))


def prompt_of(*parts: int | Size | ResizedImage, seed: int = 0, vocab: int = 256, pad: int = 0) -> ImagePrompt:
    """Random text of so many tokens, and images, one after the other; those of a size differ by their number."""
    random = np.random.default_rng(seed)
    ids: list[int] = []
    spans: list[ImageSpan] = []
    images: list[ResizedImage] = []
    for part in parts:
        if isinstance(part, int):
            ids += random.integers(0, vocab, part).tolist()
            continue
        image = picture(part, seed * 100 + len(images)) if isinstance(part, tuple) else part
        spans.append(ImageSpan(len(ids), image.height, image.width))
        ids += [pad] * image.tokens
        images.append(image)
    return ImagePrompt(tuple(ids), tuple(spans), tuple(images))


class Seen:
    """A prompt as the steps of an engine take it."""

    def __init__(self, engine: Engine, prompt: ImagePrompt, rows: Sequence[npt.NDArray[np.float32]] = ()) -> None:
        """`rows` of the images; the engine's own unless given."""
        vision = engine.model.vision
        assert vision is not None
        self.images = vision.placed(prompt)
        self.tokens = image_keys(self.images, prompt.ids)
        self._rows = np.zeros((len(self.tokens), engine.steps.state.limits.hidden), np.float32)
        for i, (image, shown) in enumerate(zip(self.images, prompt.pixels, strict=True)):
            self._rows[image.span.start : image.span.end] = rows[i] if rows else vision.rows(image, shown)

    def __len__(self) -> int:
        return len(self.tokens)

    def start(self, engine: Engine) -> Tokens:
        """A new sequence for it."""
        sequence = engine.steps.new_sequence()
        sequence.images = self.images
        return sequence

    def piece(self, start: int, stop: int) -> tuple[list[int], npt.NDArray[np.float32]]:
        """Tokens, and the rows of those that are of images."""
        tokens = self.tokens[start:stop]
        return tokens, self._rows[start:stop][np.array(tokens) < 0]

    def prefill(self, engine: Engine, sequence: Tokens, stop: int) -> Any:
        """Computes the prompt up to there; what the step gives."""
        tokens, rows = self.piece(sequence.length, stop)
        return engine.steps.prefill([sequence], [tokens], [rows])
