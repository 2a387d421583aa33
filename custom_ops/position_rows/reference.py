"""What PositionRows computes, in NumPy."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def position_rows(x: Floats, bias: Floats, table: Floats, rows: NDArray[np.int32], weights: Floats) -> Floats:
    """y = x + bias + four rows of the table, each with its weight: x [T, D], table [P, D], rows and weights [4, T].

    An image's patches get a learned table of positions this way, stretched to its size: bilinear interpolation takes
    four entries for each patch.
    """
    added = (table[rows].astype(np.float64) * weights[..., None]).sum(0)
    y: Floats = (x.astype(np.float64) + bias + added).astype(np.float32)
    return y
