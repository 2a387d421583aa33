"""Checkpoints in a folder, for other programs and those to come.

A folder for each model has files `LENGTH-HASH.session`, each a session file with one checkpoint: of so many tokens, of
which this is the SHA-256. So nothing is read to know what there is, and programs that share the folder need no index.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections import abc
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError
from trigraph.models.staging import sweep
from trigraph.runtime.cache.checkpoint import Checkpoint
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cache.session_file import SessionFile, page_tensors, write_session
from trigraph.runtime.cache.tensor_file import Pieces, check_tensors_writable, reading_seconds
from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.execution.results import StepResult
from trigraph.runtime.execution.steps import Steps
from trigraph.runtime.images.prompt import PlacedImage, same_images
from trigraph.runtime.state.sequence import Sequence

_log = logging.getLogger("trigraph.cache")
# A checkpoint is written if it saves so many seconds, and so many times what reading it takes.
_MIN_SECONDS, _MIN_READS = 1.0, 4
_TICK = 50_000_000  # nanoseconds
_MAX_WAITING = 2 << 30  # bytes of copies that wait to be written
_REST = 60.0  # seconds without writing after a failure: a disk that was full may have room again
_BUDGET, _DISK_PART = 16 << 30, 0.5  # bytes by default, and at most so much of what the disk has left
_NAME = re.compile(r"(\d{1,9})-([0-9a-f]{32})\.session")
_LEFTOVER = re.compile(r"\.(.*)\.partial-[0-9a-f]{12}")

Key = tuple[int, str]
"""Length and hash of a file's tokens."""


class DiskTier:
    """The files of one model. All calls are made under `steps.lock`; files are written in a thread of its own.

    Least recently used files make room for new ones. Several programs may use a folder at once: files appear whole, and
    one that is gone, damaged or of another model is as good as none.
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
        """Why the last file could not be written."""
        self._resting_until = 0.0  # of time.monotonic
        self.read = self.written = 0
        """Files so far."""
        # The KV of the MTP head is not complete in a program without speculation.
        kind = json.dumps([dataclasses.asdict(model), steps.can_draft], sort_keys=True)
        self._root, self._folder = folder, folder / hashlib.sha256(kind.encode()).hexdigest()[:16]
        self._model, self._steps, self._speed = model, steps, speed
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise TrigraphError(f"{folder}: cannot be made: {error.strerror}; choose another cache folder") from error
        check_tensors_writable(self._folder / "0.session")
        free = shutil.disk_usage(folder).free + sum(size for _, size, _ in self._files())
        self._budget = min(_BUDGET, int(free * _DISK_PART)) if budget is None else budget
        for path in self._folder.iterdir():
            if left := _LEFTOVER.fullmatch(path.name):
                sweep(self._folder / left[1])
        self._sizes: dict[Key, int] = {}  # bytes
        self._scanned = -1  # when the folder had changed last, as far as `_sizes` knows
        self._waiting: dict[Key, int] = {}
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
        """Gives `load` the file with the longest beginning of a prompt, above so many tokens, if reading it pays.

        `needs_row`: see PrefixCache.find. Whether there was one.
        """
        self._scan()
        for key in reversed([*_beginnings(prompt, self._sizes)]):
            if not self._speed.seconds(key[0] - above) > reading_seconds(self._sizes[key]):
                break
            path = self._path(key)
            try:
                saved = SessionFile(path, self._model, self._steps)
                if saved.tokens != prompt[: key[0]] or len(saved.lengths) != 1:
                    raise TrigraphError(f"{path}: has the name of another file")
                if not same_images(saved.images, images, key[0]):
                    continue
                if needs_row and key[0] == len(prompt) and not saved.has_row(0):
                    continue
                load(saved)
            except TrigraphError:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                self._sizes.pop(key, None)
                continue
            self.read += 1
            with suppress(OSError):
                os.utime(path)
            return True
        return False

    def offer(self, sequence: Sequence, row: StepResult | None) -> None:
        """Has a checkpoint written if that pays: copies it now, and writes it later."""
        state, tokens = self._steps.state, sequence.tokens
        size = state.slot_bytes + state.page_bytes * state.pages_of(len(tokens))
        least = max(_MIN_SECONDS, _MIN_READS * reading_seconds(size))
        if time.monotonic() < self._resting_until or self._speed.seconds(len(tokens)) < least:
            return
        self._scan()
        waiting = dict(self._waiting)
        *_, (before, _) = [(0, ""), *_beginnings(tokens, self._sizes.keys() | waiting.keys())]
        if self._speed.seconds(len(tokens) - before) < least:
            return
        if size > self._budget or sum(waiting.values()) + size > _MAX_WAITING:
            return
        checkpoint = Checkpoint.of(state, sequence, None if row is None else row.logits[0])
        pages = [
            dataclasses.replace(pieces, arrays=[rows.copy() for rows in pieces.arrays])
            for pieces in page_tensors(state, sequence)
        ]
        key = _key(tokens)
        self._waiting[key] = size
        self._writer.submit(self._write, key, tokens.copy(), pages, checkpoint, sequence.images)

    def finish(self) -> None:
        """Waits until all is written. Not to be called under the lock."""
        self._writer.submit(lambda: None).result()

    def _write(
        self,
        key: Key,
        tokens: list[int],
        pages: list[Pieces],
        checkpoint: Checkpoint,
        images: abc.Sequence[PlacedImage],
    ) -> None:
        try:
            self._make_room(self._waiting[key])
            write_session(self._path(key), self._model, tokens, pages, [checkpoint], images=images)
            self._make_room(0)  # it is a bit larger than was thought
            self.written += 1
            self.problem = None
        except (OSError, TrigraphError) as error:
            if self.problem is None:
                _log.warning("%s; checkpoints are kept in memory alone", error)
            self.problem, self._resting_until = str(error), time.monotonic() + _REST
        finally:
            del self._waiting[key]

    def _make_room(self, size: int) -> None:
        """Removes files, the least recently used ones first, until there is room in the budget and on the disk.

        None go for the disk where all of them would not do, as others fill it.
        """
        files = self._files()
        total = sum(size_ for _, size_, _ in files)
        useful = shutil.disk_usage(self._root).free + total >= size
        for _, size_, path in sorted(files):
            if total + size <= self._budget and not (useful and shutil.disk_usage(self._root).free < size):
                return
            with suppress(OSError):
                path.unlink(missing_ok=True)
                total -= size_

    def _files(self) -> list[tuple[int, int, Path]]:
        """When each file was last used, its size, and its path; those of all models."""
        files = []
        for path in self._root.glob("*/*.session"):
            with suppress(OSError):  # another program has removed it
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        return files

    def _scan(self) -> None:
        """Sees which files there are, where any came or went."""
        with suppress(OSError):
            changed = self._folder.stat().st_mtime_ns
            if changed == self._scanned:
                return
            sizes = {}
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if name := _NAME.fullmatch(entry.name):
                        with suppress(OSError):
                            sizes[int(name[1]), name[2]] = entry.stat().st_size
            # Clocks of file systems tick slowly: after a change just now, another one might look the same.
            settled = time.time_ns() - changed > _TICK
            self._sizes, self._scanned = sizes, changed if settled else -1

    def _path(self, key: Key) -> Path:
        return self._folder / f"{key[0]}-{key[1]}.session"


def _beginnings(tokens: list[int], keys: Collection[Key]) -> Iterator[Key]:
    """Those of the keys that beginnings of `tokens` have, in ascending order of length."""
    packed, digest, done = np.array(tokens, "<i4").tobytes(), hashlib.sha256(), 0
    for length in sorted({length for length, _ in keys if length <= len(tokens)}):
        digest.update(packed[4 * done : 4 * length])
        done = length
        if (key := (length, digest.hexdigest()[:32])) in keys:
            yield key


def _key(tokens: list[int]) -> Key:
    return len(tokens), hashlib.sha256(np.array(tokens, "<i4").tobytes()).hexdigest()[:32]
