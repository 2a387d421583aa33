"""A resized image: the pixels that a model sees, with what follows from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trigraph.models.vision.config import MERGE, PATCH, PATCH_INPUTS, TOKEN, VisionConfig

PREPROCESSING = 1
"""The version of all that turns pixels into patches; another one means other digests."""


@dataclass(frozen=True, eq=False)
class ResizedImage:
    """An image whose sides are whole tokens. One text, one answer begins here: the same pixels, the same answer."""

    pixels: npt.NDArray[np.uint8]
    """[height, width, 3]: red, green, blue."""
    source: tuple[int, int]
    """Height and width of the image that it was made from."""

    @property
    def height(self) -> int:
        """In tokens."""
        return int(self.pixels.shape[0]) // TOKEN

    @property
    def width(self) -> int:
        """In tokens."""
        return int(self.pixels.shape[1]) // TOKEN

    @property
    def tokens(self) -> int:
        return self.height * self.width

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height * MERGE, self.width * MERGE

    def patches(self, tower: VisionConfig) -> npt.NDArray[np.float32]:
        """The normalised numbers of each patch, in the order that `patch_places` has. [patches, 768]"""
        level = (np.arange(256) * (1 / 255)).astype(np.float32)[:, None]  # a table: elementwise, so equal everywhere
        table = (level - np.array(tower.mean, np.float32)) / np.array(tower.std, np.float32)
        rows, columns = self.grid
        blocks = self.pixels.reshape(rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH, 3)
        ordered = blocks.transpose(0, 3, 1, 4, 6, 2, 5)  # token's row and column, patch's, channel, pixel's
        channel, patches = np.arange(3)[:, None, None], np.empty(ordered.shape, np.float32)
        for row, block in enumerate(ordered):  # of tokens: an index takes eight times the memory of its bytes
            patches[row] = table[block, channel]
        return patches.reshape(rows * columns, PATCH_INPUTS)

    def digest(self, tower_sha256: str) -> bytes:
        """SHA-256 of everything that the image's rows depend on: tower, preprocessing, size and pixels."""
        digest = hashlib.sha256(f"{tower_sha256} {PREPROCESSING} {self.height} {self.width} ".encode())
        digest.update(np.ascontiguousarray(self.pixels).data)
        return digest.digest()


def prefix_keys(digest: bytes, tokens: int) -> npt.NDArray[np.int32]:
    """What stands for an image's tokens where prefixes are compared: negative numbers, so not ids of tokens. [tokens]

    Nine of them carry all of the digest's 256 bits.
    """
    words = np.frombuffer(hashlib.shake_256(digest).digest(4 * tokens), "<i4")
    return words.astype(np.int32) | np.int32(-(2**31))
