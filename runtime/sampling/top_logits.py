"""The largest logits of a row.

Few of them are found by the operator library, where there is one: a step leaves the caches empty, and the code of each
of NumPy's calls comes from memory.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.custom_ops import library_function

_FEW = 256  # from about twice as many on NumPy is faster, for all its calls


def top_logits(logits: NDArray[np.float32], k: int) -> tuple[list[int], list[float]]:
    """Ids and values of the `k` largest of `logits` [vocabulary], largest first, ties to the lowest id.

    Fewer where there are no more; where there is NaN, that alone.
    """
    function, size = _function(), len(logits)
    if function is None or k > _FEW or not size:
        return _top_logits(logits, k)
    if not logits.flags.carray:
        logits = logits.copy()  # ctypes takes contiguous memory that could be written
    k = min(k, size)
    ids, values = (ctypes.c_int64 * k)(), (ctypes.c_float * k)()
    count = function(ctypes.c_float.from_buffer(logits.data), size, k, ids, values)
    return ids[:count], values[:count]


@cache
def _function() -> Any:
    function = library_function("trigraph_top_logits")
    if function is not None:
        floats, integers = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_int64)
        function.argtypes = [floats, ctypes.c_int64, ctypes.c_int64, integers, floats]
        function.restype = ctypes.c_int64
    return function


def _top_logits(logits: NDArray[np.float32], k: int) -> tuple[list[int], list[float]]:
    """The k largest logits and their ids, in NumPy."""
    if np.isnan(logits).any():
        return [int(logits.argmax())], [np.nan]
    if k < len(logits):
        ids = np.flatnonzero(logits >= np.partition(logits, len(logits) - k)[len(logits) - k])
    else:
        ids = np.arange(len(logits))
    ids = ids[np.argsort(-logits[ids], kind="stable")[:k]]
    return ids.tolist(), logits[ids].tolist()
