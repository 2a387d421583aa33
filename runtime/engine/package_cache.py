"""The user's cache of packages: each made of a GGUF file when that is first loaded."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import trigraph.custom_ops
import trigraph.exporter
import trigraph.models
from trigraph.custom_ops import library_version
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.exporter.package.paths import can_be_named
from trigraph.models.errors import TrigraphError
from trigraph.models.model import companion
from trigraph.models.progress import Progress, silent
from trigraph.models.staging import check_writable
from trigraph.models.vision.tower import possible_towers
from trigraph.models.wrong_path import wrong_path

_REMEDY = "set XDG_CACHE_HOME to a folder that you can write to"


@dataclass(frozen=True)
class CachedPackage:
    """A package in the cache."""

    folder: Path
    notices: tuple[str, ...] = ()
    """What the user should know of the cache, one sentence each."""


@dataclass(frozen=True)
class _Entry:
    """The place of a package in a cache: `package`, and `source.json`, which says what it was made of."""

    folder: Path
    stamp: str

    @property
    def package(self) -> Path:
        return self.folder / "package"

    def is_current(self) -> bool:
        """Whether the package was made of these very files, and by this exporter; its manifest has hashes of the
        files, too."""
        try:
            if (self.folder / "source.json").read_text(encoding="utf-8") != self.stamp:
                return False
            read_manifest(self.package)
        except (OSError, TrigraphError):
            return False
        return True

    def check_writable(self) -> None:
        """Raises OSError when the entry cannot be made."""
        nearest = next(folder for folder in (self.folder, *self.folder.parents) if os.path.lexists(folder))
        check_writable(nearest / "package")

    def make(self, source: Path, options: ExportOptions, progress: Progress) -> None:
        """Exports the package, after those of files that are gone were removed."""
        with suppress(OSError):
            sweep(self.folder.parent)
        export(source, self.package, options, progress)
        with suppress(OSError):  # a package without a stamp is made anew the next time
            (self.folder / "source.json").write_text(self.stamp, encoding="utf-8")


@dataclass(frozen=True)
class ExportedModel:
    """A package that was made of files."""

    folder: Path
    sources: tuple[Path, ...]

    @property
    def bytes(self) -> int:
        """What it takes on disk."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    @property
    def is_orphan(self) -> bool:
        """Whether a file that it was made of is gone."""
        return not all(source.exists() for source in self.sources)

    def remove(self) -> None:
        """Deletes it. It is made again when its model is loaded."""
        shutil.rmtree(self.folder, ignore_errors=True)


def exported_models(cache: Path | None = None) -> list[ExportedModel]:
    """The packages in a cache: the user's unless another one is given."""
    models = []
    for stamp in sorted((cache or _user_cache()).glob("*/source.json")):
        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):  # another program's
            files = json.loads(stamp.read_text(encoding="utf-8"))[0]
            sources = tuple(Path(path) for path, *_ in files)
            if sources and all(can_be_named(str(source)) for source in sources):
                models.append(ExportedModel(stamp.parent, sources))
    return models


def sweep(cache: Path | None = None) -> None:
    """Removes the packages whose files are gone."""
    for exported in exported_models(cache):
        if exported.is_orphan:
            exported.remove()


def cached_package(source: Path, options: ExportOptions, progress: Progress = silent) -> CachedPackage:
    """The package of a GGUF file in the user's cache, exported now unless that has been done.

    Where that cannot be written, the package is in a cache of the user's in the folder for temporary files. Weights are
    referenced, not linked: a link would keep the disk space of a model that the user deletes. Raises TrigraphError when
    the file is no model or neither cache can be written.
    """
    options = dataclasses.replace(options, weights="reference", mtp=options.mtp or companion(source))
    name, stamp = _identity(source, options)
    try:
        entry = _Entry(_user_cache() / name, stamp)
        if entry.is_current():
            return CachedPackage(entry.package)
        entry.check_writable()
        with _reported_when_full():
            entry.make(source, options, progress)
        return CachedPackage(entry.package)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        entry = _Entry(_temporary_cache() / name, stamp)
        reason = error.strerror if isinstance(error, OSError) else error
    try:
        if not entry.is_current():
            with _reported_when_full():
                entry.make(source, options, progress)
    except OSError as error:
        raise TrigraphError(
            f"neither the cache folder ({reason}) nor {entry.folder} ({error.strerror}) can be written; free space, "
            f"or {_REMEDY}"
        ) from error
    notice = f"the cache folder cannot be written ({reason}): {entry.folder} is used instead; {_REMEDY}"
    return CachedPackage(entry.package, (notice,))


@contextmanager
def _reported_when_full() -> Iterator[None]:
    """Turns the error of an export on a full disk back into the OSError that it comes from."""
    try:
        yield
    except TrigraphError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise cause from error
        raise


def _identity(source: Path, options: ExportOptions) -> tuple[str, str]:
    """The name of a model's entry, and a stamp that changes with the model's files and with the exporter."""
    towers = [options.mmproj] if options.mmproj else possible_towers(source)
    files = [source, *[file for file in (options.mtp, options.draft_model) if file], *towers]
    files = [Path(file) for file in files]  # programs give strings, too
    try:
        stamp = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    except OSError as error:
        raise wrong_path(Path(error.filename), f"cannot be read: {error.strerror}") from error
    choices = {name: str(value) for name, value in dataclasses.asdict(options).items()}
    digest = hashlib.sha256(json.dumps([stamp[0][0], choices], sort_keys=True).encode()).hexdigest()
    return f"{source.stem}-{digest[:16]}", json.dumps([stamp, choices, *_exporter()], sort_keys=True)


def _exporter() -> tuple[str, str]:
    """The version of the operator library, and a hash of all sources that decide what an export writes."""
    places = (trigraph.custom_ops.__file__, trigraph.exporter.__file__, trigraph.models.__file__)
    return library_version(), _sha256_of_sources(tuple(Path(place).resolve().parent for place in places))


@cache
def _sha256_of_sources(folders: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _user_cache() -> Path:
    """Raises RuntimeError when the user has no home folder."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "trigraph"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "trigraph"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "trigraph"
    return Path.home() / ".cache" / "trigraph"


def _temporary_cache() -> Path:
    """A folder that no other user can write to: its packages are trusted."""
    try:
        folder = Path(tempfile.gettempdir(), "trigraph" if os.name == "nt" else f"trigraph-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise TrigraphError(f"neither the cache folder nor {error.filename} can be written; {_REMEDY}") from error
    if os.name != "nt" and (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
        or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise TrigraphError(f"{folder}: others can write there; {_REMEDY}")
    return folder
