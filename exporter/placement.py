"""Where a package's weights are: linked into it, copied into it, or referenced in place."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trigraph.exporter.package.manifest import SIDE_FILE
from trigraph.models.errors import TrigraphError, check_name
from trigraph.models.progress import Progress

MODES = ("link", "copy", "reference")
_COPY_CHUNK = 8 << 20


@dataclass(frozen=True)
class Placement:
    """Where graphs find weight files."""

    folder: str | None
    """Absolute folder that locations are relative to; None for the package itself."""
    locations: Mapping[Path, str]
    """For each weight file its path in `folder`, with forward slashes."""
    side_location: str
    """The same for the side file of converted weights, which is always in the package."""


def locate(sources: Sequence[Path], out: Path, mode: str) -> Placement:
    """Where weight files will be for the package `out`, if they are linked, copied or referenced (`mode`).

    Raises TrigraphError when graphs cannot name such a place.
    """
    if mode == "reference":
        placement = _reference(sources, out.resolve())
    else:
        placement = Placement(None, dict(zip(sources, _names(sources), strict=True)), SIDE_FILE)
    for name in (placement.folder or "", *placement.locations.values(), placement.side_location):
        check_name(name)
    return placement


def bring(locations: Mapping[Path, str], folder: Path, mode: str, progress: Progress) -> None:
    """Link or copy weight files to their names in a package; referenced ones stay where they are."""
    targets = {source: folder / name for source, name in locations.items()}
    if mode == "link":
        for source, target in targets.items():
            _link(source, target)
    elif mode == "copy":
        _copy(targets, progress)


def _reference(sources: Sequence[Path], out: Path) -> Placement:
    files = [source.resolve() for source in sources]
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
