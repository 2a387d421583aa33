"""Sampling on a GPU, from the logits of its steps, so that these stay there."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigraph.runtime.device.cuda.array import CudaArray
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.device_memory import pinned_array
from trigraph.runtime.device.exchange import Exchange
from trigraph.runtime.device.sampler import Sample, SamplingParameters

_DRAW = np.dtype(  # `Draw` in custom_ops/cuda/draw.cu
    [
        ("temperature", "f8"),
        ("top_p", "f8"),
        ("min_p", "f8"),
        ("seed", "u8"),
        ("position", "u8"),
        ("token", "u8"),
        ("top_k", "i4"),
        ("only_drawn", "i4"),
    ]
)


class CudaSampler:
    """Draws tokens with the library's kernel, which gives the host's bits."""

    def __init__(self, library: CudaLibrary, most: int, steps: int, vocab: int) -> None:
        """`most` draws of a round, after at most `steps` steps, from at most `vocab` logits each."""
        self._library = library
        self._given = pinned_array(library, (most,), _DRAW)
        self._draws = CudaArray(library, (most,), _DRAW)
        self._found = pinned_array(library, (most,), np.dtype(np.int64))
        self._tokens = CudaArray(library, (most,), np.dtype(np.int64))
        self._events = [library.make_event() for _ in range(steps + 1)]
        for event in self._events:
            weakref.finalize(self, library.free_event, event)
        self._scratch: CudaArray | None = None  # made when there is more to draw than the most likely token
        self._vocab, self._most_top_k = vocab, library.most_drawn_from(vocab)
        self._samples: Sequence[Sample] = ()  # of the round
        self._next = self._marked = 0
        self._sent = -1

    def supports(self, parameters: SamplingParameters) -> bool:
        """Whether the kernel draws like that: greedily, or with a top-k that it has room for."""
        return parameters.temperature == 0 or 0 < parameters.top_k <= self._most_top_k

    def begin(self, samples: Sequence[Sample]) -> None:
        """The samples are sent behind the round's first step, as the device has work by then."""
        self._samples, self._next, self._marked = samples, 0, 0
        self._mark()

    def sample(self, exchange: Exchange, rows: int) -> None:
        self._send()
        logits, tokens = exchange.result("logits"), exchange.result("tokens")
        scratch = 0 if self._scratch is None else self._scratch.address
        self._library.draw_rows(
            logits.address, rows, logits.shape[1], tokens.address, self._draws.row(self._next), scratch
        )
        self._next += rows
        self._mark()

    def walk(self, exchange: Exchange, walks: Sequence[tuple[int, int]]) -> None:
        self._send()
        candidates, edges = exchange.result("candidates"), exchange.result("edges")
        sizes = edges.shape[2], edges.shape[1]
        self._library.walk_blocks(candidates.address, edges.address, sizes, walks, self._draws.row(self._next))
        self._next += sum(count for _, count in walks)
        self._mark()

    def _send(self) -> None:
        if self._next:
            return
        if self._sent == self._library.waits:  # a round that was left early
            self._library.wait()
        samples = self._samples
        self._given[: len(samples)] = [
            (how.temperature, how.top_p, how.min_p, how.seed, position, self.place(number), how.top_k, only_drawn)
            for number, (how, position, only_drawn) in enumerate(samples)
        ]
        if self._scratch is None and any(sample.parameters.temperature for sample in samples):
            size = self._library.draw_scratch(self._vocab)
            self._scratch = CudaArray(self._library, (size,), np.dtype(np.uint8))
        self._library.copy(self._draws.address, self._given.ctypes.data, len(samples) * _DRAW.itemsize)
        self._sent = self._library.waits

    def place(self, number: int) -> int:
        return self._tokens.row(number)

    def read(self) -> NDArray[np.int64]:
        """Tokens by number, from pinned memory that is filled when the stream has been waited for."""
        drawn: NDArray[Any] = self._found[: len(self._samples)]
        self._library.copy(drawn.ctypes.data, self._tokens.address, drawn.nbytes)
        return drawn

    def seconds(self) -> list[float]:
        """What each step and its samples took, by events on the stream."""
        return [self._library.seconds_between(*pair) for pair in pairwise(self._events[: self._marked])]

    def _mark(self) -> None:
        self._library.record_event(self._events[self._marked])
        self._marked += 1
