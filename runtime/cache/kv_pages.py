"""The KV pages of a sequence as tensors of a file, in pieces: a long sequence's take gigabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.cache.tensor_file import PIECE, Pieces
from trigraph.runtime.state.sequence import Sequence
from trigraph.runtime.state.state import State, StateBuffer

Guard = Callable[[], AbstractContextManager[object]]
"""Makes a context in which the state may be read; it may raise instead."""


def page_tensors(state: State, sequence: Sequence, first: int = 0, guard: Guard = nullcontext) -> list[Pieces]:
    """The pages from number `first` on. Each piece is copied out of the state when it is asked for, under a `guard`."""
    size = state.limits.page_size
    numbers = sequence.pages[: state.pages_of(sequence.length)].tolist()[first:]

    def arrays(buffer: StateBuffer, end: int) -> Iterator[NDArray[Any]]:
        step = max(1, PIECE // buffer.row_bytes)
        for start in range(0, len(numbers), step):
            with guard():
                rows = np.stack([buffer.current[number] for number in numbers[start : start + step]])
            # What stands behind the end may be of another sequence.
            rows.reshape(-1, *rows.shape[2:])[max(0, end - (first + start) * size) :] = 0
            yield rows

    return [
        Pieces(
            f"pages.{name}",
            buffer.current.dtype,
            (len(numbers), *buffer.current.shape[1:]),
            arrays(buffer, min(sequence.mtp_len, sequence.length) if _of_head(name) else sequence.length),
        )
        for name, buffer in state.paged.items()
    ]


def settled(state: State, length: int, mtp_len: int) -> int:
    """The number of tokens whose KV is all there, the MTP head's too where there is one."""
    return min(mtp_len, length) if any(map(_of_head, state.paged)) else length


def _of_head(name: str) -> bool:
    return name.startswith("mtp.")
