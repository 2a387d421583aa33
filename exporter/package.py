"""Package folders on disk: they appear whole or not at all, and their weights are linked, copied or referenced."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trigraph.exporter.manifest import SIDE_FILE, is_package
from trigraph.exporter.progress import Progress
from trigraph.models.errors import TrigraphError

MODES = ("link", "copy", "reference")
_COPY_CHUNK = 8 << 20


def check_target(out: Path, sources: Sequence[Path], *, referenced: bool) -> None:
    """Refuse a target that is neither new, nor an empty folder, nor a package.

    Refuse also a package that holds the `sources` if they are to be `referenced`: replacing it would remove them.
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


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A new folder beside `out` that takes its place when the block ends well and vanishes when it does not.

    Raises TrigraphError when the folder cannot be written.
    """
    stage = _beside(out, "partial")
    missing = [folder for folder in out.parents if not folder.exists()]
    try:
        stage.mkdir(parents=True)
        yield stage
        _sync(stage)
        _replace(out, stage)
    except BaseException as error:
        shutil.rmtree(stage, ignore_errors=True)
        for folder in missing:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        if isinstance(error, OSError):
            raise TrigraphError(
                f"{out}: cannot be written: {error.strerror or error}; choose another output folder"
            ) from error
        raise


@dataclass(frozen=True)
class Placement:
    """Where graphs find weight files."""

    folder: str | None
    """Absolute folder that locations are relative to; None for the package itself."""
    locations: Mapping[Path, str]
    """For each weight file its path in `folder`, with forward slashes."""
    side_location: str
    """The same for the side file of converted weights, which is always in the package."""


def place(sources: Sequence[Path], stage: Path, out: Path, mode: str, progress: Progress) -> Placement:
    """Link, copy or only reference (`mode`) weight files for the package that `stage` becomes, renamed to `out`."""
    if mode == "reference":
        return _reference([source.resolve() for source in sources], sources, out.resolve())
    targets = {source: stage / name for source, name in zip(sources, _names(sources), strict=True)}
    if mode == "link":
        for source, target in targets.items():
            _link(source, target)
    else:
        _copy(targets, progress)
    return Placement(None, {source: target.name for source, target in targets.items()}, SIDE_FILE)


def _reference(files: Sequence[Path], sources: Sequence[Path], out: Path) -> Placement:
    # ONNX Runtime takes one folder, and no path that leads out of it: the deepest that holds everything.
    try:
        folder = Path(os.path.commonpath([*(file.parent for file in files), out]))
    except ValueError as error:
        raise TrigraphError(
            f"{files[0]}: is on another drive than {out}; use --copy-weights, or choose an output folder there"
        ) from error
    locations = {source: file.relative_to(folder).as_posix() for source, file in zip(sources, files, strict=True)}
    return Placement(str(folder), locations, (out / SIDE_FILE).relative_to(folder).as_posix())


def _names(sources: Sequence[Path]) -> list[str]:
    """A name in the package for each weight file: its own, made unique and recognisable where it has to be."""
    names: list[str] = []
    for source in sources:
        name = source.name if source.suffix == ".gguf" else f"{source.name}.gguf"
        names.append(name if name not in names else f"mtp-{name}")
    return names


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)  # a link to a symbolic link would lead out of the package
    except OSError as error:
        raise TrigraphError(
            f"{source}: cannot be hard-linked into the package ({error.strerror}); choose an output folder on the same "
            "file system, or --copy-weights to copy the file, or --reference to leave it where it is"
        ) from error


def _copy(targets: Mapping[Path, Path], progress: Progress) -> None:
    total, done = sum(source.stat().st_size for source in targets), 0
    for source, target in targets.items():
        with open(source, "rb") as reader, open(target, "wb") as writer:
            while chunk := reader.read(_COPY_CHUNK):
                writer.write(chunk)
                done += len(chunk)
                progress("copy", done, total)


def _replace(out: Path, stage: Path) -> None:
    """Rename `stage` to `out`; an old package steps aside first and comes back if that fails."""
    old = _beside(out, "old")
    if out.exists():
        os.rename(out, old)
    try:
        os.rename(stage, out)
    except BaseException:
        if old.exists():
            os.rename(old, out)
        raise
    _sync_folder(out.parent)
    shutil.rmtree(old, ignore_errors=True)


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
