"""The grids of the IQ types, as the package `gguf` has them: an index stands for the levels of four or eight elements.

`python -m trigraph.custom_ops.blocks.formats.grids` prints grids.h, which kernels read.
"""

from collections.abc import Iterator

import gguf
import numpy as np
from numpy.typing import NDArray

GRIDS = {
    "iq1": "IQ1_S",
    "iq2_xxs": "IQ2_XXS",
    "iq2_xs": "IQ2_XS",
    "iq2_s": "IQ2_S",
    "iq3_xxs": "IQ3_XXS",
    "iq3_s": "IQ3_S",
}
"""Grids by name, and the type whose class in `gguf.quants` holds it. IQ1_M shares that of IQ1_S."""


def grid(name: str) -> NDArray[np.int8]:
    """Levels [entries, 4 or 8]."""
    quant = getattr(gguf.quants, GRIDS[name])
    quant.init_grid()
    return np.asarray(quant.grid.reshape(quant.grid_shape), np.int8)


def packed(name: str) -> NDArray[np.uint16]:
    """An entry's levels by their numbers, from the lowest on: four bits for each of four, two for each of eight."""
    levels = grid(name)
    numbers = np.searchsorted(np.unique(levels), levels)
    return np.asarray((numbers << np.arange(0, 16, 16 // levels.shape[1])).sum(axis=1), np.uint16)


def header() -> Iterator[str]:
    """The lines of grids.h."""
    yield "// The grids of the IQ types: made by grids.py, which describes them."
    yield "// The numbers are ggml's: Copyright (c) 2023-2026 The ggml authors, MIT licence (text in LICENSE)."
    yield "#pragma once"
    yield ""
    yield "// clang-format off"
    yield "namespace trigraph::TRIGRAPH_ISA {"
    for name in GRIDS:
        entries = [f"0x{entry:04x}," for entry in packed(name)]
        yield ""
        yield f"TRIGRAPH_TABLE uint16_t {name}_grid[{len(entries)}] = {{"
        for first in range(0, len(entries), 16):
            yield "  " + " ".join(entries[first : first + 16])
        yield "};"
    yield ""
    yield "}  // namespace trigraph::TRIGRAPH_ISA"


if __name__ == "__main__":
    print("\n".join(header()))
