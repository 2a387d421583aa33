"""Steps that a GPU records as CUDA graphs, and replays in one launch."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import onnxruntime as ort

from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.cuda.array import CudaArray
from trigraph.runtime.device.cuda.exchange import spans
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.exchange import BoundStep

_log = logging.getLogger("trigraph.captures")

GRAPHS = ("draft", "block", "verify")
"""The graphs whose steps are captured: prefills and images have too many shapes."""

_MOST_TOKENS = 64  # of a step that is captured
_MOST_CAPTURES = 96  # of a session: ONNX Runtime does not give them back before it ends
_MOST_SHAPES = 4096  # whose runs are counted; then the counts begin anew
_ATTEMPTS = 3  # at a capture: what else the process does with a device may end one

apart = threading.Lock()
"""Held while a session is opened, for which ONNX Runtime waits for all streams of the GPU, or a step is captured, in
which CUDA forbids that."""


@dataclass(eq=False)
class _Shape:
    """The steps of one shape."""

    runs: int = 0
    failures: int = 0
    step: BoundStep | None = None
    """The one that is captured."""
    replay: ort.RunOptions | None = None


class _Shapes(threading.local):
    """By shape; ONNX Runtime keeps what it captures for the thread in which it did."""

    def __init__(self) -> None:
        self.found: dict[Hashable, _Shape] = {}


class Captures:
    """Steps of one session that are captured, for the thread that runs them: the engine's."""

    def __init__(self, library: CudaLibrary, at: int, pending: Sequence[CudaArray]) -> None:
        """`at`: which run of a shape is captured. Shapes are many, and most are seldom used.

        `pending`: the state that waits for the tokens of a verify to be accepted.
        """
        self._library, self._at, self._pending = library, at, pending
        self._shapes, self._numbers, self._made = _Shapes(), count(1), 0

    def captured(self, shape: Hashable) -> BoundStep | None:
        return None if (found := self._shapes.found.get(shape)) is None else found.step

    def replay(self, step: BoundStep, run: Callable[[ort.RunOptions], object]) -> ort.RunOptions | None:
        if step.tokens > _MOST_TOKENS:
            return None
        shapes = self._shapes.found
        if step.shape not in shapes and len(shapes) >= _MOST_SHAPES:
            self._shapes.found = shapes = {shape: found for shape, found in shapes.items() if found.step}
        shape = shapes.setdefault(step.shape, _Shape())
        shape.runs += 1
        due = shape.step is None and shape.runs >= self._at and shape.failures < _ATTEMPTS
        # While a session is opened, a later run is captured.
        if due and self._made < _MOST_CAPTURES and apart.acquire(blocking=False):
            try:
                self._capture(shape, step, run)
            finally:
                apart.release()
        return shape.replay

    def _capture(self, shape: _Shape, step: BoundStep, run: Callable[[ort.RunOptions], object]) -> None:
        """A run of which ONNX Runtime makes three: the second may have fewer tokens to commit from.

        So nothing is committed, which leaves the state as it is, and what waits for that is put back. Attention's
        entries are written anew by the run that counts. What another thread does on the device may end a capture, and
        an error of the step itself comes again with the run that counts.
        """
        options = run_options(next(self._numbers))
        sent = step.exchange.sent
        slots = sent["slots_out"].tolist() if "slots_out" in sent else []
        accepted = [step.inputs["accepted"]] if "accepted" in step.inputs else []
        try:
            with _kept(self._library, self._pending, slots), _cleared(self._library, accepted):
                run(options)
        except TrigraphError as error:
            _log.debug("a step of shape %s was not captured: %s", step.shape, error)
            shape.failures += 1
            return
        shape.step, shape.replay = step, options
        self._made += 1


def run_options(number: int = -1) -> ort.RunOptions:
    """How a graph is run whose end nobody waits for but us: to capture or replay a step of that number, or neither."""
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    options.add_run_config_entry("gpu_graph_id", str(number))
    return options


@contextlib.contextmanager
def _kept(library: CudaLibrary, memories: Sequence[CudaArray], rows: Sequence[int]) -> Iterator[None]:
    """Whatever the block does to these rows, they are afterwards as they were before.

    The copies are one piece of memory: to take and give back one for each would take long.
    """
    size = sum(memory.row_bytes for memory in memories) * len(rows)
    copies = CudaArray(library, (size,), np.dtype(np.uint8))
    moves, copy = [], copies.address
    for memory in memories:
        for _, source, rows_together in spans([memory.row(row) for row in rows], memory.row_bytes):
            moves.append((source, copy, rows_together * memory.row_bytes))
            copy += rows_together * memory.row_bytes
    for source, copy, size in moves:
        library.copy(copy, source, size)
    try:
        yield
    finally:
        for source, copy, size in moves:
            library.copy(source, copy, size)


@contextlib.contextmanager
def _cleared(library: CudaLibrary, memories: Sequence[CudaArray]) -> Iterator[None]:
    """These hold zeros, and after the block what they held before."""
    copies = [(memory, CudaArray(library, (2, *memory.shape), memory.dtype)) for memory in memories]
    for memory, copy in copies:
        library.copy(copy.row(0), memory.address, memory.nbytes)
        library.copy(memory.address, copy.row(1), memory.nbytes)
    try:
        yield
    finally:
        for memory, copy in copies:
            library.copy(memory.address, copy.row(0), memory.nbytes)
