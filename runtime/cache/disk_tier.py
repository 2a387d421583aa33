"""Checkpoints in a folder, for other programs and those to come."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import time
from collections import abc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.disk_folder import CacheFile, DiskFolder
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.kv_pages import page_tensors
from trigraph.runtime.cache.session_file import SessionFile, write_session
from trigraph.runtime.cache.tensor_file import FileError, reading_seconds
from trigraph.runtime.cache.token_keys import Key, beginnings, key_of
from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.execution.results import StepResult
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.images.prompt import PlacedImage, same_images
from trigraph.runtime.state.sequence import RELEASED, Sequence

_log = logging.getLogger("trigraph.cache")
# A checkpoint is written if it saves so many seconds, and so many times what reading it takes.
_MIN_SECONDS, _MIN_READS = 1.0, 4
_MAX_WAITING = 2 << 30  # bytes that wait to be written, where it is more than one checkpoint
_REST = 60.0  # seconds without writing after a failure: a disk that was full may have room again


class _UnwrittenError(Exception):
    """Why a checkpoint is not written, though files can be."""


@dataclasses.dataclass(eq=False)
class _Offered:
    """A checkpoint to be written."""

    sequence: Sequence
    """Holds its slot and pages; released when these are needed."""
    logits: NDArray[np.float32] | None
    size: int
    """Bytes, about."""


class DiskTier:
    """The files of one model. All calls are made under `steps.lock`; files are written in a thread of its own.

    A file holds the KV pages since its parent's: the longest beginning that there is. What a file is written from is
    held until then, and copied in pieces, each under the lock. Several programs may use a folder at once: files appear
    whole, and one that is gone, damaged or of another model is as good as none, as are those that go on from it.
    """

    def __init__(
        self, folder: Path, budget: int | None, model: ModelIdentity, steps: Steps, speed: PrefillSpeed
    ) -> None:
        """`budget` in bytes, for all models together; by default 16 GiB, if that is half of what is free or less.

        Raises TrigraphError when no files can be made in the folder.
        """
        if budget is not None:
            check("cache_size", budget, int, lambda value: value >= 1, "1 or more")
        self.problem: str | None = None
        """Why the last checkpoint that was worth a file has none."""
        self._resting_until = 0.0  # of time.monotonic
        self.read = self.written = 0
        """Checkpoints so far."""
        # The KV of the MTP head is not complete in a program without speculation.
        kind = json.dumps([dataclasses.asdict(model), steps.can_draft], sort_keys=True)
        self._folder = DiskFolder(folder, hashlib.sha256(kind.encode()).hexdigest()[:16], budget)
        self._model, self._steps, self._speed = model, steps, speed
        self._waiting: dict[Key, _Offered] = {}  # changed under the lock
        self._writer = ThreadPoolExecutor(1, "checkpoints")

    def take(
        self,
        prompt: list[int],
        images: abc.Sequence[PlacedImage],
        above: int,
        load: Callable[[SessionFile], None],
        *,
        needs_row: bool = True,
    ) -> bool:
        """Gives `load` the file with the longest beginning of a prompt, if reading it pays.

        `above`: the first tokens of the prompt that are in memory. `needs_row`: see PrefixCache.find. Whether there
        was one.
        """
        for key in reversed(beginnings(prompt, self._folder.files())):
            if key[0] <= above or not (chain := self._folder.chain(key, above)):  # or another one has removed it
                continue
            if not self._speed.seconds(key[0] - above) > self._reading_seconds(chain):
                break
            try:
                saved = self._open(chain, prompt)
                if not same_images(saved.images, images, key[0]):
                    continue
                if needs_row and key[0] == len(prompt) and not saved.has_row(0):
                    continue
                load(saved)
            except TrigraphError as error:
                self._folder.remove(error.path if isinstance(error, FileError) else chain[0].path)
                continue
            self.read += 1
            with suppress(OSError):
                os.utime(chain[0].path)  # those before it are as recently used as it is
            return True
        return False

    def offer(self, sequence: Sequence, row: StepResult | None) -> None:
        """Has a checkpoint written if that pays; until then its slot and pages are held."""
        state, tokens = self._steps.state, sequence.tokens
        if time.monotonic() < self._resting_until or self._speed.seconds(len(tokens)) < _MIN_SECONDS:
            return
        *_, (before, _) = [(0, ""), *beginnings(tokens, self._folder.files().keys() | self._waiting.keys())]
        size = self._size(len(tokens), before // state.limits.page_size)
        if self._speed.seconds(len(tokens) - before) < max(_MIN_SECONDS, _MIN_READS * reading_seconds(size)):
            return
        if self._waiting and sum(offered.size for offered in self._waiting.values()) + size > _MAX_WAITING:
            self._keep_in_memory(len(tokens), "the disk is slower than they come")
            return
        key, logits = key_of(tokens), None if row is None else row.logits[0].copy()
        self._waiting[key] = offered = _Offered(state.hold(sequence), logits, size)
        self._writer.submit(self._write, key, offered)

    def give_way(self) -> bool:
        """Gives back what the last checkpoint holds that waits to be written, which it then is not. False: none."""
        for offered in reversed(self._waiting.values()):
            if offered.sequence.slot != RELEASED:
                self._steps.release(offered.sequence)
                return True
        return False

    def finish(self) -> None:
        """Waits until all is written. Not to be called under the lock."""
        self._writer.submit(lambda: None).result()

    def _write(self, key: Key, offered: _Offered) -> None:
        try:
            if key not in self._folder.files():  # another program may have been first
                self._write_part(key, offered)
                self.written += 1
            self.problem = None
        except _UnwrittenError as error:
            self._keep_in_memory(key[0], str(error))
        except (OSError, TrigraphError) as error:
            self._say(f"{error}; checkpoints are kept in memory alone")
            self._resting_until = time.monotonic() + _REST
        finally:
            with self._steps.lock:
                self._steps.release(offered.sequence)
                del self._waiting[key]

    def _write_part(self, key: Key, offered: _Offered) -> None:
        """Writes what there is not in the file of a beginning."""
        sequence, state = offered.sequence, self._steps.state

        @contextmanager
        def held() -> Iterator[None]:
            with self._steps.lock:
                if sequence.slot == RELEASED:
                    raise _UnwrittenError("its memory was needed before")
                yield

        parent, first = self._parent(sequence)
        chain = [] if parent is None else self._folder.chain(parent)
        size, before = self._size(key[0], first), sum(file.size for file in chain)
        if size + before > self._folder.budget:
            raise _UnwrittenError(f"it takes {size + before:,} bytes; raise cache_size")
        path = self._folder.path(key, parent)
        kept = [path, *(file.path for file in chain)]
        self._folder.make_room(size, kept)
        checkpoint = Checkpoint.of(state, sequence, offered.logits, held)
        pages = page_tensors(state, sequence, first, held)
        write_session(path, self._model, sequence.tokens, pages, [checkpoint], images=sequence.images, first_page=first)
        self._folder.make_room(0, kept)  # it is a bit larger than was thought

    def _parent(self, sequence: Sequence) -> tuple[Key | None, int]:
        """The file with the longest beginning of a sequence, and the first page that it has not."""
        files = self._folder.files()
        for key in reversed(beginnings(sequence.tokens[:-1], files)):
            try:
                saved = self._open([files[key]], sequence.tokens)
            except TrigraphError:  # a reader removes it
                continue
            if saved.settled_pages and same_images(saved.images, sequence.images, key[0]):
                return key, saved.settled_pages
        return None, 0

    def _open(self, chain: list[CacheFile], tokens: list[int]) -> SessionFile:
        """Opens the first file of a chain, with those before it; all have beginnings of `tokens`."""
        saved: SessionFile | None = None
        for file in reversed(chain):
            before, saved = saved, SessionFile(file.path, self._model, self._steps, part=True, before=saved)
            if saved.tokens != tokens[: file.key[0]] or len(saved.lengths) != 1:
                raise FileError(file.path, "has the name of another file")
            if before is not None and not same_images(before.images, saved.images, len(before.tokens)):
                raise FileError(file.path, "goes on from another file")
        assert saved is not None
        return saved

    def _size(self, length: int, first_page: int) -> int:
        """Bytes, about, of a file."""
        state = self._steps.state
        return state.slot_bytes + state.page_bytes * (state.pages_of(length) - first_page)

    def _reading_seconds(self, chain: list[CacheFile]) -> float:
        """How long a chain takes to read: of all files but the first, pages alone are read."""
        sizes = [chain[0].size, *(max(0, file.size - self._steps.state.slot_bytes) for file in chain[1:])]
        return sum(map(reading_seconds, sizes))

    def _keep_in_memory(self, length: int, why: str) -> None:
        self._say(f"a checkpoint of {length:,} tokens is kept in memory alone: {why}")

    def _say(self, problem: str) -> None:
        """Logs the first one of several problems."""
        if self.problem is None:
            _log.warning(problem)
        self.problem = problem
