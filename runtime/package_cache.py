"""The user's cache of packages: each made of a GGUF file when that is first loaded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from trigraph.custom_ops import library_version
from trigraph.exporter import ExportOptions, export, read_manifest
from trigraph.exporter.package.manifest import CONTRACT_VERSION
from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent


def cached_package(source: Path, options: ExportOptions, progress: Progress = silent) -> Path:
    """The folder of the package of a GGUF file in the user's cache, exported now unless that has been done.

    Weights are referenced, not linked: a link would keep the disk space of a model that the user deletes.
    """
    options = dataclasses.replace(options, weights="reference")
    files = [source, *([options.mtp] if options.mtp else [])]
    try:
        stamp = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    except OSError as error:
        raise TrigraphError(f"{error.filename}: cannot be read: {error.strerror}") from error
    choices = {name: str(value) for name, value in dataclasses.asdict(options).items()}
    identity = json.dumps([stamp[0][0], choices], sort_keys=True)
    entry = _cache_home() / f"{source.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    package, stamp_file = entry / "package", entry / "source.json"
    current = json.dumps([stamp, choices, CONTRACT_VERSION], sort_keys=True)
    if not _is_current(package, stamp_file, current):
        export(source, package, options, progress)
        with suppress(OSError):  # a package without a stamp is made anew the next time
            stamp_file.write_text(current, encoding="utf-8")
    return package


def _is_current(package: Path, stamp_file: Path, stamp: str) -> bool:
    """Whether the cached package was made of this very file; its manifest also knows the hash of the file's header."""
    try:
        if stamp_file.read_text(encoding="utf-8") != stamp:
            return False
        read_manifest(package).check_library(library_version())
    except (OSError, TrigraphError):
        return False
    return True


def _cache_home() -> Path:
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "trigraph"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "trigraph"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "trigraph"
    return Path.home() / ".cache" / "trigraph"
