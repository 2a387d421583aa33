"""Files of a package are regular files in its folder: no link and no name leads to another place."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PureWindowsPath

from trigraph.models.errors import TrigraphError, file_errors


def file_inside(folder: Path, location: str, most: int) -> Path:
    """The path of a file of at most `most` bytes at `location`, relative to `folder`, with forward slashes.

    Raises TrigraphError when it is missing, is something else, is larger, or is reached by leaving the folder. A hard
    link is a file like any other.
    """
    path = folder / location
    with file_errors(path, remedy="; export the package again"):
        real = Path(os.path.realpath(path, strict=True))
        status = os.stat(real)
    if not stays_inside(location) or Path(os.path.realpath(folder)) not in real.parents:
        raise TrigraphError(f"{path}: leads out of {folder}, to {real}; put the file itself into the folder")
    if not stat.S_ISREG(status.st_mode):
        raise TrigraphError(f"{path}: is not a file; export the package again")
    if status.st_size > most:
        raise TrigraphError(f"{path}: has {status.st_size} bytes, expected at most {most}; export the package again")
    return path


def stays_inside(location: str) -> bool:
    """Whether a location stays inside the folder that it is relative to, on any platform."""
    path = PureWindowsPath(location)  # knows both kinds of slash, and drives
    return bool(path.parts) and not path.anchor and ".." not in path.parts and can_be_named(location)


def can_be_named(path: str) -> bool:
    """Whether a path is one that the system can be asked for."""
    return "\0" not in path and path == path.encode(errors="replace").decode()
