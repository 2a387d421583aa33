"""Where a package's weights are: linked into it, copied into it, or referenced in place."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trigraph.exporter.package.manifest import SIDE_FILE
from trigraph.models.errors import TrigraphError, check_name
from trigraph.models.progress import Progress

MODES = ("link", "copy", "reference")
_COPY_CHUNK = 8 << 20
# Another file system, one without hard links, a file of somebody else, as many links as there can be.
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


@dataclass(frozen=True)
class Placement:
    """Where graphs find weight files."""

    folder: str | None
    """Absolute folder that locations are relative to; None for the package itself."""
    locations: Mapping[Path, str]
    """For each weight file its path in `folder`, with forward slashes."""
    side_location: str
    """The path of the side file of converted weights in `folder`; the file is always in the package."""

    def __post_init__(self) -> None:
        for name in (self.folder or "", *self.locations.values(), self.side_location):
            check_name(name)


def place(sources: Sequence[Path], out: Path, folder: Path, mode: str) -> Placement:
    """Where the weight files of the package `out`, now in `folder`, are linked, copied or referenced (`mode`).

    Links are made at once, copies by `copy`. Files that the file system cannot link are referenced. Raises
    TrigraphError for files that cannot be referenced.
    """
    if mode == "reference":
        return _reference(sources, out.resolve())
    names = dict(zip(sources, _names(sources), strict=True))
    if mode == "link" and not _link({source: folder / name for source, name in names.items()}):
        return _reference(sources, out.resolve())
    return Placement(None, names, SIDE_FILE)


def copy(placement: Placement, folder: Path, progress: Progress) -> None:
    """Copies weight files to their places in the package in `folder`."""
    total, done = sum(source.stat().st_size for source in placement.locations), 0
    for source, name in placement.locations.items():
        with open(source, "rb") as reader, open(folder / name, "wb") as writer:
            while chunk := reader.read(_COPY_CHUNK):
                writer.write(chunk)
                done += len(chunk)
                progress("copy", done, total)


def _reference(sources: Sequence[Path], out: Path) -> Placement:
    files = [source.resolve() for source in sources]
    if inside := [file for file in files if out in file.parents]:
        raise TrigraphError(f"{out}: holds {inside[0].name}, which the package would refer to; choose another folder")
    # ONNX Runtime takes one folder, and no path that leads out of it: the deepest that holds everything.
    try:
        folder = Path(os.path.commonpath([*(file.parent for file in files), out]))
    except ValueError as error:
        raise TrigraphError(
            f"{files[0]}: is on another drive than {out}; copy the weights, or choose an output folder there"
        ) from error
    locations = {source: file.relative_to(folder).as_posix() for source, file in zip(sources, files, strict=True)}
    return Placement(str(folder), locations, (out / SIDE_FILE).relative_to(folder).as_posix())


def _link(targets: Mapping[Path, Path]) -> bool:
    """Hard-links files; false, and nothing is linked, where the file system cannot."""
    try:
        for source, target in targets.items():
            os.link(source.resolve(), target)  # a link to a symbolic link would lead out of the package
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        for target in targets.values():
            target.unlink(missing_ok=True)
        return False
    return True


def _names(sources: Sequence[Path]) -> list[str]:
    """A name in the package for each weight file: its own, made unique where it has to be."""
    names: list[str] = []
    for source in sources:
        name = source.name if source.suffix == ".gguf" else f"{source.name}.gguf"
        while name in names:
            name = f"mtp-{name}"
        names.append(name)
    return names
