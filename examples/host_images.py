"""Decodes a text about an image with ONNX Runtime, NumPy and Pillow, by the contract (exporter/CONTRACT.md).

Usage: python examples/host_images.py PACKAGE OPERATOR_LIBRARY IMAGE 5,77,IMAGE,12 (ids, and where the image stands)
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from host import TOKENS, Host
from PIL import Image

PATCH, SIDE = 16, 32  # pixels of a patch, and of a token, which has 2 x 2 patches
MOST = 64  # tokens of a side here


def patches_of(image: Image.Image, mean: list[float], std: list[float]) -> tuple[Any, int, int]:
    """Numbers [patches, 768], the patches of a token behind each other; rows and columns of tokens."""
    rows, columns = (min(MOST, max(1, round(side / SIDE))) for side in (image.height, image.width))
    wide = image.convert("RGB").resize((columns * SIDE, image.height), Image.Resampling.BICUBIC)
    pixels = np.array(wide.resize((columns * SIDE, rows * SIDE), Image.Resampling.BICUBIC))
    numbers = ((pixels * (1 / 255)).astype(np.float32) - np.array(mean, np.float32)) / np.array(std, np.float32)
    blocks = numbers.reshape(rows, 2, PATCH, columns, 2, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(blocks).reshape(-1, 3 * PATCH * PATCH), rows, columns


def table_of(places: Any, rows: int, columns: int, side: int) -> tuple[Any, Any]:
    """Four rows of the table of positions and their weights, for patches at `places` [2, patches]."""
    at = places * ((side - 1) / (2 * np.array([[rows], [columns]]) - 1))
    low = np.minimum(at.astype(np.int32), side - 1)
    high, (down, across) = np.minimum(low + 1, side - 1), at - low
    corners = [(low, low), (low, high), (high, low), (high, high)]
    index = np.stack([row[0] * side + column[1] for row, column in corners])
    weights = [(1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across]
    return index.astype(np.int32), np.stack(weights).astype(np.float32)


def see(host: Host, image: Image.Image) -> tuple[Any, int, int]:
    """Rows of an image's tokens, and how many rows and columns of tokens there are."""
    if "images" not in host.manifest["features"]:
        sys.exit("error: the package has no vision.onnx; export the model with its mmproj-*.gguf")
    tower = host.manifest["images"]["tower"]
    patches, rows, columns = patches_of(image, tower["mean"], tower["std"])
    grid = np.indices((2 * rows, 2 * columns), np.int32).reshape(2, rows, 2, columns, 2).transpose(0, 1, 3, 2, 4)
    places = np.ascontiguousarray(grid).reshape(2, -1)
    index, weights = table_of(places, rows, columns, tower["table_side"])
    given = {"patches": patches, "places": places, "table_rows": index, "table_weights": weights}
    ends = np.array([0, len(patches)], np.int32)
    return host.graphs["vision"].run(["embeddings"], given | {"cu_seqlens": ends})[0], rows, columns


def main(package: str, library: str, file: str, prompt: str) -> None:
    first, last = ([int(number) for number in part.strip(",").split(",") if number] for part in prompt.split("IMAGE"))
    host = Host(Path(package), library, len(first) + len(last) + MOST * MOST + TOKENS + 8)
    embeddings, rows, columns = see(host, Image.open(file))
    start, count = len(first), rows * columns
    length = start + count + len(last)
    host.shift = max(rows, columns) - count
    # Before the image, in it, and behind it.
    positions = np.tile(np.arange(length, dtype=np.int32), (3, 1))
    positions[:, start : start + count] = start + np.stack(
        [np.zeros(count), np.repeat(np.arange(rows), columns), np.tile(np.arange(columns), rows)]
    ).astype(np.int32)
    positions[:, start + count :] += host.shift
    places = np.arange(start, start + count)[:, None]
    ids = [*first, *[0] * count, *last]
    print(*host.decode(ids, positions=positions, image_rows=embeddings, image_places=places))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
