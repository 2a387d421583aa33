"""Files and folders that appear whole or not at all, even when their writer is killed.

They are written under a hidden name beside the target, which the writer holds a lock on, and then renamed. What a
killed writer leaves is not locked: the next one for the same target removes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trigraph.models.signals import ENDING, deferred, unwinding

if sys.platform != "win32":
    import fcntl

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Linux
_RENAME_SWAP = 2  # macOS


@contextmanager
def staged_file(target: Path) -> Iterator[Path]:
    """The path of an empty file to write, which replaces `target` when the block ends well. Raises OSError."""
    with _staged(target, lambda path: path.touch(exist_ok=False)) as stage:
        yield stage
        _sync(stage)
        os.replace(stage, target)


@contextmanager
def staged_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """An empty folder to fill, which becomes `target` when the block ends well. Raises OSError.

    With `replace` a folder that is there is removed, and until then it is never missing where the file system can
    exchange two names; without, FileExistsError is raised unless it is empty: of several writers one succeeds.
    """
    missing = [folder for folder in target.parents if not folder.exists()]
    try:
        with _staged(target, lambda path: path.mkdir(parents=True)) as stage:
            yield stage
            for path in stage.iterdir():
                if path.stat().st_nlink == 1:  # linked files are on the disk already
                    _sync(path)
            _sync(stage)
            with deferred(*ENDING):  # half of it is a mess
                _place(stage, target, replace)
    except BaseException:
        with deferred(*ENDING):
            for folder in missing:
                with suppress(OSError):  # not empty, or never made
                    folder.rmdir()
        raise


def check_writable(target: Path) -> None:
    """Raise OSError when no file can be made beside `target`."""
    with _staged(target, lambda path: path.touch(exist_ok=False)):
        pass


def sweep(target: Path) -> None:
    """Remove what writers of `target` left that were killed.

    Where the file system has no locks nothing is removed: whether a writer lives cannot be told.
    """
    leftover = re.compile(rf"\.{re.escape(target.name)}\.(partial|old)-[0-9a-f]{{12}}")
    with suppress(OSError):
        for path in [path for path in target.parent.iterdir() if leftover.fullmatch(path.name)]:
            with suppress(OSError):  # its writer lives, or there are no locks
                lock = _lock(path)
                try:
                    if ".old-" in path.name and not os.path.lexists(target):
                        os.rename(path, target)
                    _remove(path)
                finally:
                    os.close(lock)


@contextmanager
def _staged(target: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """What `make` made under a hidden name beside `target`, locked; whatever has this name at the end is removed."""
    sweep(target)
    stage, lock = _beside(target, "partial"), None
    try:
        with unwinding():
            while True:
                make(stage)
                try:
                    lock = _lock(stage)
                except (BlockingIOError, FileNotFoundError):
                    pass
                except OSError:
                    break  # no locks here
                else:
                    if stage.exists():
                        break
                    os.close(lock)
                stage, lock = _beside(target, "partial"), None  # a sweep took the first one for a leftover
            yield stage
    finally:
        with deferred(*ENDING):
            _remove(stage)
            if lock is not None:
                os.close(lock)


def _lock(path: Path) -> int:
    """A descriptor that holds the lock of a file or folder.

    Raises BlockingIOError when another one holds it, and OSError of other kinds where there are no locks.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "folders have no locks there")
    # Network file systems lock only what is open for writing.
    descriptor = os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if path.is_dir() else os.O_RDWR))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _place(stage: Path, target: Path, replace: bool) -> None:
    """Rename `stage` to `target`; a folder that is there is then at `stage`, or gone."""
    try:
        os.rename(stage, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        if not _exchange(stage, target):
            _step_aside(stage, target)
    _sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; false where the system or the file system cannot."""
    if os.name == "nt":
        return False
    libc, first, second = ctypes.CDLL(None, use_errno=True), os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(first, second, _RENAME_SWAP)
    else:
        return False
    if failed and ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
    return not failed


def _step_aside(stage: Path, target: Path) -> None:
    """Rename `target` away and `stage` in its place. A program that is killed in between leaves that to a sweep."""
    old = _beside(target, "old")
    try:
        os.rename(target, old)
        os.rename(stage, target)
    finally:
        if target.exists():
            _remove(old)
        elif old.exists():
            os.rename(old, target)


def _beside(target: Path, role: str) -> Path:
    """An unused hidden name in the same folder, so that a rename never crosses file systems."""
    return target.with_name(f".{target.name}.{role}-{secrets.token_hex(6)}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Bring what was written to a file or folder to the disk."""
    if os.name == "nt" and path.is_dir():  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
