"""The folder that an export writes: it appears whole or not at all, and never in the place of something else."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trigraph.exporter.package.manifest import FILE_NAME, GRAPHS, SIDE_FILE
from trigraph.exporter.package.reader import is_package
from trigraph.models.errors import TrigraphError
from trigraph.models.signals import deferred, unwinding_on_sigterm

_OWN_FILES = {FILE_NAME, SIDE_FILE, "tokenizer.json", "chat_template.jinja", *(f"{graph}.onnx" for graph in GRAPHS)}
# Enough of two weight files of one size to tell models apart.
_COMPARED_BYTES = 1 << 20


def check_target(out: Path, sources: Sequence[Path], *, referenced: bool) -> None:
    """Refuse a target that is neither new, nor an empty folder, nor a package that can go without loss.

    `sources` are the weight files of the new package, which leaves them where they are if they are `referenced`.
    """
    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise TrigraphError(f"{out}: exists and is not a folder; choose another output folder")
    if not is_package(out) and any(out.iterdir()):
        raise TrigraphError(
            f"{out}: exists and is not a trigraph package; choose another output folder, or empty this one"
        )
    if referenced and any(out.resolve() in source.resolve().parents for source in sources):
        raise TrigraphError(f"{out}: holds the weights that --reference would point to; choose another output folder")
    for path in out.iterdir():
        if path.is_dir() or (path.suffix != ".gguf" and path.name not in _OWN_FILES):
            raise TrigraphError(f"{path}: is not part of a package, and would be lost; move it away")
        single = path.suffix == ".gguf" and path.lstat().st_nlink == 1 and not path.is_symlink()
        if single and not any(_same(path, source) for source in sources):
            raise TrigraphError(f"{path}: is weights of another model, with no other link to them; move or remove them")


def _same(path: Path, source: Path) -> bool:
    """Whether two weight files are one, or one a copy of the other."""
    if path.samefile(source):
        return True
    if path.stat().st_size != source.stat().st_size:
        return False
    with open(path, "rb") as one, open(source, "rb") as other:
        return one.read(_COMPARED_BYTES) == other.read(_COMPARED_BYTES)


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A new folder beside `out` that takes its place when the block ends well and vanishes when it does not.

    Raises TrigraphError when the folder cannot be written.
    """
    stage = _beside(out, "partial")
    missing = [folder for folder in out.parents if not folder.exists()]
    try:
        with unwinding_on_sigterm():
            stage.mkdir(parents=True)
            yield stage
            _sync(stage)
            with deferred(signal.SIGINT, signal.SIGTERM):  # half of it is a mess
                _replace(out, stage)
    except BaseException as error:
        with deferred(signal.SIGINT, signal.SIGTERM):
            shutil.rmtree(stage, ignore_errors=True)
            for folder in missing:
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
        if isinstance(error, OSError):
            raise TrigraphError(
                f"{out}: cannot be written: {error.strerror or error}; choose another output folder"
            ) from error
        raise


def _replace(out: Path, stage: Path) -> None:
    """Rename `stage` to `out`; an old package steps aside first and comes back if that fails."""
    old = _beside(out, "old")
    try:
        if out.exists():
            os.rename(out, old)
        os.rename(stage, out)
        _sync_folder(out.parent)
    finally:
        if old.exists():
            if out.exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                os.rename(old, out)


def _beside(out: Path, role: str) -> Path:
    """An unused hidden name in the same folder, so that a rename never crosses file systems."""
    return out.with_name(f".{out.name}.{role}-{secrets.token_hex(6)}")


def _sync(folder: Path) -> None:
    """Bring what was written in a folder to the disk; linked weights are there already."""
    for path in folder.iterdir():
        if path.stat().st_nlink == 1:
            descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
