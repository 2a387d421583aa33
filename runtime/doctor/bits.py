"""Hashes of everything that packages compute for fixed tokens.

`python -m trigraph.runtime.doctor.bits DEVICE DIR...` prints, as JSON, a list of those of each package for each layout
of weights that the kernels read.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.models.rope_positions import ImageSpan
from trigraph.models.vision.config import TOKEN
from trigraph.runtime.device.choice import open_devices
from trigraph.runtime.device.repack.weights import SIDE_BY_SIDE
from trigraph.runtime.engine.loading import load
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.execution.vision import Vision
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.prompt import ImagePrompt, image_keys
from trigraph.runtime.state.sequence import Sequence

_CHUNK = 48  # shorter than the longer prompt
_IMAGES = ((ImageSpan(15, 5, 7),), (ImageSpan(0, 2, 3), ImageSpan(10, 1, 8)))
"""The images of the two prompts, where there is a vision tower. The first one lies across an end of a prefill."""


class _Hashes:
    """A SHA-256 for each part of a model's output and state. Numbers count as little-endian bytes."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def add(self, part: str, array: NDArray[Any]) -> None:
        host = np.asarray(array)  # it may lie on a GPU
        little = host.astype(host.dtype.newbyteorder("<"), copy=False)
        self._parts.setdefault(part, hashlib.sha256()).update(little.tobytes())

    def digests(self) -> dict[str, str]:
        return {part: digest.hexdigest() for part, digest in self._parts.items()}


def package_bits(folder: Path, device: str = "cpu", *, repacked: bool = False) -> Mapping[str, str]:
    """Hashes of logits, hidden rows, drafts, recurrent state and KV of a package with an MTP head.

    Two sequences are prefilled, verified with some tokens rejected, drafted and prefilled again. In a package with a
    vision tower they have images, whose rows are hashed too. The environment variable TRIGRAPH_ISA chooses the kernels
    of a CPU.
    """
    engine = load(folder, context=256, chunk=_CHUNK, device=device, repack="on" if repacked else "off")
    steps, hashes = engine.steps, _Hashes()
    long, short = both = [steps.new_sequence(), steps.new_sequence()]
    prompts = [tokens_of(steps, 61, 0), tokens_of(steps, 29, 1)]
    shown = [_show(hashes, engine.model.vision, *given) for given in zip(both, prompts, _IMAGES, strict=True)]
    _add_rows(hashes, steps.prefill(both, *zip(*shown, strict=True)))
    for round_number, (kept_long, kept_short) in enumerate(((5, 0), (1, 4))):
        _draft(hashes, steps, both, tokens_of(steps, 2, 2 + round_number))
        new = [tokens_of(steps, 8, 4 + round_number), tokens_of(steps, 4, 6 + round_number)]
        _add_rows(hashes, steps.verify(both, new))
        steps.keep(long, kept_long)
        steps.keep(short, kept_short)
    _add_rows(hashes, steps.prefill([short], [tokens_of(steps, 7, 8)]))
    _draft(hashes, steps, both, tokens_of(steps, 2, 9))
    _add_rows(hashes, steps.verify(both, [[1], [2]]))  # commits all tokens before
    for sequence in both:
        for part, array in _state(steps, sequence):
            hashes.add(part, array)
    return hashes.digests()


def tokens_of(steps: Steps, count: int, number: int) -> list[int]:
    """Tokens that no library's random numbers decide."""
    return [(7919 * (i + 1) * (i + number + 3) + 104729 * number) % steps.vocab for i in range(count)]


def _show(
    hashes: _Hashes, vision: Vision | None, sequence: Sequence, tokens: list[int], spans: tuple[ImageSpan, ...]
) -> tuple[list[int], NDArray[np.float32] | None]:
    """The tokens of a prompt with images in some places, and the rows of these; with no tower, the prompt itself."""
    if vision is None:
        return tokens, None
    pixels = tuple(_pixels(span) for span in spans)
    sequence.images = vision.placed(ImagePrompt(tuple(tokens), spans, pixels))
    rows = [vision.rows(image, shown) for image, shown in zip(sequence.images, pixels, strict=True)]
    for each in rows:
        hashes.add("image rows", each)
    return image_keys(sequence.images, tokens), np.concatenate(rows)


def _pixels(span: ImageSpan) -> ResizedImage:
    """Waves of all lengths, made of integers."""
    rows, columns, colours = np.ogrid[: span.height * TOKEN, : span.width * TOKEN, :3]
    pixels = (rows * rows * (colours + 1) + columns * columns * 3 + rows * columns + 89 * colours) // 64 % 256
    return ResizedImage(pixels.astype(np.uint8), pixels.shape[:2])


def _add_rows(hashes: _Hashes, rows: Any) -> None:
    hashes.add("logits", rows.logits)
    hashes.add("tokens", rows.tokens)
    hashes.add("hidden rows", rows.hidden)


def _draft(hashes: _Hashes, steps: Steps, sequences: list[Sequence], tokens: list[int]) -> None:
    guess = steps.draft(sequences, tokens)
    for _ in range(3):
        for array in (guess.tokens, guess.probability, guess.hidden):
            hashes.add("drafts", array)
        guess = steps.draft_more(sequences, guess.tokens.tolist(), guess.hidden)


def _state(steps: Steps, sequence: Sequence) -> Iterator[tuple[str, NDArray[Any]]]:
    """The committed state of a sequence, in order of position and without what no token has written."""
    for name, memory in sorted(steps.state.tensors.items()):
        if name in steps.state.paged:
            part = "KV of the MTP head" if name.startswith("mtp.") else "KV"
            size = steps.state.limits.page_size
            for first in range(0, sequence.length, size):
                yield part, memory[int(sequence.pages[first // size])][: sequence.length - first]
        elif name.endswith(".window"):
            yield "recurrent state", memory[sequence.slot][: memory.shape[1] - steps.max_pending]
        elif name.endswith(".state"):
            yield "recurrent state", memory[sequence.slot]


if __name__ == "__main__":
    device, folders = sys.argv[1], [Path(folder) for folder in sys.argv[2:]]
    layouts = {"plain": False}
    if open_devices(device)[0].kernels in SIDE_BY_SIDE:
        layouts["repacked"] = True
    found = {name: [package_bits(folder, device, repacked=it) for folder in folders] for name, it in layouts.items()}
    print(json.dumps(found))
