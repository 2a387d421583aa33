"""Prompts with images for the text model's reference: tokens, places, and random patches of a vision tower."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trigraph.models import Model
from trigraph.models.reference_layers import Array
from trigraph.models.rope_positions import ImageSpan

PROMPTS: dict[str, list[tuple[int, int]]] = {
    "no image": [],
    "one token": [(1, 1)],
    "odd": [(3, 5)],
    "table size": [(4, 4)],
    "very wide": [(1, 67)],
    "very tall": [(61, 1)],
    "two": [(7, 2), (2, 9)],
    "two in a row": [(3, 3), (0, 0), (2, 4)],
    "three": [(1, 2), (11, 13), (5, 1)],
}
"""Heights and widths of images, in tokens; (0, 0) leaves out the text between two, but for the tokens around them."""


def random_patches(height: int, width: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Patches of an image of height x width tokens, as far apart as those of photographs."""
    rng = np.random.default_rng([seed, height, width])
    return rng.uniform(-1, 1, (4 * height * width, 768)).astype(np.float32)


def make_prompt(
    model: Model, sizes: list[tuple[int, int]]
) -> tuple[list[int], list[ImageSpan], list[npt.NDArray[np.float32]]]:
    """Tokens, of which those of images are 0, the places of images, and their patches."""
    rng = np.random.default_rng(5)
    tokens: list[int] = rng.integers(0, 256, 5).tolist()
    spans, images, apart = [], [], 3
    for number, (height, width) in enumerate(sizes):
        if not height:
            apart = 0
            continue
        tokens += [*rng.integers(0, 256, apart if number else 0).tolist(), 300]  # the image starts
        spans.append(ImageSpan(len(tokens), height, width))
        images.append(random_patches(height, width, number))
        tokens += [0] * height * width + [301]
    return tokens + rng.integers(0, 256, 4).tolist(), spans, images


def with_rows(model: Model, tokens: list[int], spans: list[ImageSpan]) -> npt.NDArray[np.int64]:
    """The tokens with rows of images in their places."""
    ids, row = np.array(tokens), model.config.vocab
    for span in spans:
        ids[span.start : span.end] = np.arange(row, row + span.tokens)
        row += span.tokens
    return ids


def rows_of(embeddings: list[Array], model: Model) -> Array:
    return np.concatenate([np.zeros((0, model.config.hidden)), *embeddings])
