"""What LastRows and PreviousRows pick, in NumPy.

T rows of S sequences laid end to end: sequence s has the rows cu_seqlens[s] to cu_seqlens[s + 1], at least one.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int32]


def last_rows(
    cu_seqlens: Ints, past_lens: Ints, x: Floats, also: Floats | None = None
) -> tuple[Ints, Ints, Floats, Floats | None]:
    """A step cut down to one row a sequence, its last: cu_seqlens [S + 1] and past_lens [S] of that step, and its rows.

    The rows are those of x [T, D] and, where given, of another tensor [T, E]: [S, D] and [S, E].
    """
    last = cu_seqlens[1:] - 1
    single = np.arange(len(cu_seqlens), dtype=np.int32)
    return single, past_lens + last - cu_seqlens[:-1], x[last], None if also is None else also[last]


def previous_rows(x: Floats, before: Floats, cu_seqlens: Ints) -> Floats:
    """For each row of x [T, D] the row before it; for the first row of sequence s, before[s] of [S, D]."""
    y = np.empty_like(x)
    y[1:] = x[:-1]
    y[cu_seqlens[:-1]] = before
    return y
