"""Reads the images of prompts, each once as long as its rows are kept, while the streams of others go on."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from trigraph.models.checks import check
from trigraph.models.errors import kept
from trigraph.models.vision.config import VisionConfig
from trigraph.runtime.execution.tower import TowerGraph
from trigraph.runtime.images.embeddings import EmbeddingCache
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.prompt import ImagePrompt, PlacedImage

Rows = NDArray[np.float32]
"""The rows of an image's tokens, read-only: [tokens, hidden]."""
_NICENESS = 5  # of the threads that read images; the scheduler of Linux gives them a third of the time of others
_Queue = SimpleQueue[tuple[Future[Rows], ResizedImage] | None]


class Vision:
    """For the engine's thread, but for what says otherwise."""

    def __init__(
        self, config: VisionConfig, sha256: str, open_graph: Callable[[], TowerGraph], budget: int, *, apart: bool
    ) -> None:
        """`sha256`: of the tower. `open_graph` is called at the first image. `budget`: bytes of rows that are kept.

        `apart`: the tower may run in a thread of its own, beside the steps of decoding.
        """
        check("image_memory", budget, int, lambda value: value >= 0, "0 or more")
        self.config = config
        self.embeddings = EmbeddingCache(budget)
        self.sha256, self._tower = sha256, _Tower(open_graph)
        self._thread = _TowerThread(self._tower) if apart else None
        self._begun: dict[bytes, Future[Rows]] = {}

    def placed(self, prompt: ImagePrompt) -> tuple[PlacedImage, ...]:
        """The images of a prompt, with their digests. Any thread may call it."""
        pairs = zip(prompt.images, prompt.pixels, strict=True)
        return tuple(PlacedImage(span, pixels.digest(self.sha256)) for span, pixels in pairs)

    def ready(self, image: PlacedImage, pixels: ResizedImage) -> bool:
        """Whether `rows` need not be waited for; where they must, the tower has begun when this returns."""
        if self._thread is None or image.digest in self.embeddings:
            return True
        if image.digest not in self._begun:
            self._begun[image.digest] = self._thread.begin(pixels)
        return self._begun[image.digest].done()

    def rows(self, image: PlacedImage, pixels: ResizedImage) -> Rows:
        """The rows of an image's tokens. Raises what the tower raises."""
        begun = self._begun.pop(image.digest, None)
        compute = partial(self._tower.run, pixels) if begun is None else begun.result
        rows = self.embeddings.rows(image.digest, compute)
        self._collect()
        return rows

    def progress(self, pixels: ResizedImage) -> float:
        """How much of an image is read that `rows` would wait for, from 0 to 1. Any thread may call it."""
        return self._tower.progress(pixels)

    def close(self) -> None:
        """Ends what the tower computes in a thread of its own. Any thread may call it."""
        if self._thread is not None:
            self._thread.close()

    def _collect(self) -> None:
        """Keeps what was computed for requests that have gone."""
        for digest in [digest for digest, begun in self._begun.items() if begun.done()]:
            with suppress(Exception):  # which comes again with a request that needs it
                self.embeddings.rows(digest, self._begun.pop(digest).result)


class _Tower:
    """The graph, opened at the first image."""

    def __init__(self, open_graph: Callable[[], TowerGraph]) -> None:
        self._open, self._lock = open_graph, threading.Lock()
        self._graph: TowerGraph | None = None
        self._reads: ResizedImage | None = None

    def run(self, pixels: ResizedImage) -> Rows:
        with self._lock:
            if self._graph is None:
                self._graph = self._open()
            self._reads = pixels
            try:
                return self._graph.run(pixels)
            finally:
                self._reads = None

    def progress(self, pixels: ResizedImage) -> float:
        """0 for an image whose turn has not come."""
        return self._graph.progress if self._graph is not None and self._reads is pixels else 0.0

    def close(self) -> None:
        if self._graph is not None:
            self._graph.stop()


class _TowerThread:
    """Computes one image after the other."""

    def __init__(self, tower: _Tower) -> None:
        self._tower = tower
        self._queue: _Queue = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, _end, self._queue, tower)

    def begin(self, pixels: ResizedImage) -> Future[Rows]:
        """The rows of an image, some time."""
        if self._thread is None:
            work = (self._queue, self._tower)
            self._thread = threading.Thread(target=_work, args=work, name="trigraph-tower", daemon=True)
            self._thread.start()
        future: Future[Rows] = Future()
        self._queue.put((future, pixels))
        return future

    def close(self) -> None:
        """Ends the thread, and what it computes."""
        _end(self._queue, self._tower)
        if self._thread is not None:
            self._thread.join()


def _end(queue: _Queue, tower: _Tower) -> None:
    tower.close()
    queue.put(None)


def _work(queue: _Queue, tower: _Tower) -> None:
    _step_back()
    while (item := queue.get()) is not None:
        future, pixels = item
        try:
            future.set_result(tower.run(pixels))
        except BaseException as error:
            future.set_exception(kept(error))


def _step_back() -> None:
    """Leaves the processors to the steps of decoding, which share them: streams go on while an image is read.

    The threads of the tower's session, which this thread opens, inherit it. Linux alone has priorities of threads.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS)
