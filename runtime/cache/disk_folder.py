"""The files of a cache folder: which checkpoints they hold, which go on from which, and which make room for others.

A folder for each model has files `LENGTH-HASH.session`: a checkpoint of so many tokens, of which this is the SHA-256.
`LENGTH-HASH-LENGTH-HASH.session` goes on from another one, its parent, which comes second. So nothing is read to know
what there is, and programs that share the folder need no index.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trigraph.models.errors import TrigraphError
from trigraph.models.staging import sweep
from trigraph.runtime.cache.tensor_file import check_tensors_writable
from trigraph.runtime.cache.token_keys import Key

_TICK = 50_000_000  # nanoseconds
_BUDGET, _DISK_PART = 16 << 30, 0.5  # bytes by default, and at most so much of what the disk has left
_KEY = r"(\d{1,9})-([0-9a-f]{32})"
_NAME = re.compile(rf"{_KEY}(?:-{_KEY})?\.session")
_LEFTOVER = re.compile(r"\.(.*)\.partial-[0-9a-f]{12}")


class CacheFile(NamedTuple):
    """A file of a checkpoint, or of the part of it that its parent's file has not."""

    path: Path
    key: Key
    parent: Key | None
    size: int
    used: int
    """When it was used last, in nanoseconds."""


class DiskFolder:
    """The files of one model, in a folder of many. Threads may share it."""

    def __init__(self, root: Path, model: str, budget: int | None) -> None:
        """`model`: the name of its folder. `budget` in bytes, for all models: 16 GiB, or half of what is free if less.

        Raises TrigraphError when no files can be made there.
        """
        self._root, self._folder = root, root / model
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise TrigraphError(f"{root}: cannot be made: {error.strerror}; choose another cache folder") from error
        check_tensors_writable(self._folder / "0.session")
        free = shutil.disk_usage(root).free + sum(file.size for file in _files(root.iterdir()))
        self.budget = min(_BUDGET, int(free * _DISK_PART)) if budget is None else budget
        for path in self._folder.iterdir():
            if left := _LEFTOVER.fullmatch(path.name):
                sweep(self._folder / left[1])
        # When the folder had changed last, and what was in it then.
        self._scanned: tuple[int, dict[Key, CacheFile]] = (-1, {})

    def files(self) -> dict[Key, CacheFile]:
        """What there is of use: all but files whose parents are gone."""
        scanned, files = self._scanned
        with suppress(OSError):
            changed = self._folder.stat().st_mtime_ns
            if changed == scanned:
                return files
            files = {file.key: file for file in _whole(_files([self._folder]))}
            # Clocks of file systems tick slowly: after a change just now, another one might look the same.
            settled = time.time_ns() - changed > _TICK
            self._scanned = changed if settled else -1, files
        return files

    def chain(self, key: Key, above: int = 0) -> list[CacheFile]:
        """A file and those before it, the longest first, as far as they have more than the first `above` tokens."""
        files, chain, at = self.files(), list[CacheFile](), key if key[0] > above else None
        while at is not None and at[0] > above and (file := files.get(at)) is not None:
            chain.append(file)
            at = file.parent
        return chain

    def path(self, key: Key, parent: Key | None) -> Path:
        """Where the file of a checkpoint belongs."""
        keys = [key] if parent is None else [key, parent]
        return self._folder / ("-".join(f"{length}-{digest}" for length, digest in keys) + ".session")

    def remove(self, path: Path) -> None:
        """Removes a file that is of no use, and those that go on from it."""
        with suppress(OSError):
            path.unlink(missing_ok=True)
        files = _files([self._folder])
        for file in {*files} - {*_whole(files)}:
            with suppress(OSError):
                file.path.unlink(missing_ok=True)
        self._scanned = (-1, {})

    def make_room(self, size: int, kept: Collection[Path]) -> None:
        """Removes files but for `kept`, the least recently used ones first, until there is room in budget and disk.

        A file that others go on from is as recently used as they are, and goes after them. None go for the disk where
        all of them would not do, as others fill it. What is of no use goes in any case.
        """
        files = _files(self._root.iterdir())
        total = sum(file.size for file in files)
        useful = shutil.disk_usage(self._root).free + total >= size
        for file, used in _by_use(files):
            full = total + size > self.budget or (useful and shutil.disk_usage(self._root).free < size)
            if not full and used:
                return
            if file.path not in kept:
                with suppress(OSError):
                    file.path.unlink(missing_ok=True)
                    total -= file.size


def _files(folders: Iterable[Path]) -> list[CacheFile]:
    """The files of some folders."""
    found = []
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if name := _NAME.fullmatch(entry.name):
                    with suppress(OSError):  # another program has removed it
                        status = entry.stat()
                        parent = None if name[3] is None else (int(name[3]), name[4])
                        key = int(name[1]), name[2]
                        path = Path(folder, entry.name)
                        found.append(CacheFile(path, key, parent, status.st_size, status.st_mtime_ns))
    return found


def _whole(files: list[CacheFile]) -> list[CacheFile]:
    """The files whose pages are all there, in ascending order of length."""
    found, keys = [], set[tuple[Path, Key | None]]()
    for file in sorted(files, key=lambda file: file.key):
        folder = file.path.parent
        if file.parent is None or (file.parent[0] < file.key[0] and (folder, file.parent) in keys):
            keys.add((folder, file.key))
            found.append(file)
    return found


def _by_use(files: list[CacheFile]) -> list[tuple[CacheFile, int]]:
    """With when each was used last, in that order, a file after those that go on from it; 0: it is of no use."""
    whole = _whole(files)
    used = dict.fromkeys(files, 0) | {file: file.used for file in whole}
    latest: dict[tuple[Path, Key | None], int] = {}  # use of what goes on from a file
    for file in reversed(whole):
        folder = file.path.parent
        used[file] = max(used[file], latest.get((folder, file.key), 0))
        latest[folder, file.parent] = max(used[file], latest.get((folder, file.parent), 0))
    return sorted(used.items(), key=lambda item: (item[1], -item[0].key[0]))
