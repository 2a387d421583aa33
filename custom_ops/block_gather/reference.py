"""What BlockGather computes, in NumPy."""

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops.blocks.formats.reference import unpack


def block_gather(ids: NDArray[np.int64], table: NDArray[np.generic], type: str) -> NDArray[np.float32]:
    """y [T, D]: rows `ids` [T] of the table [N, row bytes] (or [N, D] of F32, F16 or BF16 bits) as float32."""
    return unpack(table, type)[ids]
