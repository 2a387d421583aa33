"""The patches of an image: their order, and the rows of the table of positions that each of them takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trigraph.models.vision.config import MERGE


def patch_places(rows: int, columns: int) -> npt.NDArray[np.int32]:
    """Row and column of each patch of a grid, the patches of a token side by side. [2, patches]"""
    grid = np.indices((rows, columns), np.int32)
    blocks = grid.reshape(2, rows // MERGE, MERGE, columns // MERGE, MERGE)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 2, 4)).reshape(2, -1)


def table_rows(rows: int, columns: int, side: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Four rows of a side x side table and their weights for each patch, in the order of `patch_places`: [4, patches].

    The table is stretched over the grid so that their corners meet, and read bilinearly.
    """
    places = patch_places(rows, columns).astype(np.float64)
    last = np.array([[rows], [columns]]) - 1
    at = places * ((side - 1) / np.maximum(last, 1))
    low = np.minimum(at.astype(np.int32), side - 1)
    high, part = np.minimum(low + 1, side - 1), at - low
    (top, left), (bottom, right) = low, high
    down, across = part
    index = np.stack([top * side + left, top * side + right, bottom * side + left, bottom * side + right])
    weights = np.stack(
        [(1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across], dtype=np.float32
    )
    return index.astype(np.int32), weights
