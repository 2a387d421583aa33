"""Reads a package's manifest, and checks it and the files that it names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trigraph.exporter.package.consistency import check_values
from trigraph.exporter.package.fingerprint import sha256_of_sample, sha256_of_start
from trigraph.exporter.package.manifest import (
    CONTRACT_VERSION,
    FEATURES,
    FILE_NAME,
    FORMAT,
    GRAPHS,
    SIDE_FILE,
    Manifest,
    WeightFile,
)
from trigraph.exporter.package.paths import can_be_named, file_inside, stays_inside
from trigraph.models.decode import decode
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.wrong_path import wrong_path

_MAX_BYTES = 16 << 20
_MAX_GRAPH_BYTES = 1 << 30
_REMEDY = "export the package again"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the package in `folder`; the files that it names have been checked.

    Raises TrigraphError for another contract version, an unknown feature, a malformed manifest, a missing graph, and
    weights that are gone or no longer those of the export.
    """
    path = folder / FILE_NAME
    content = _load(path)
    version, features = content.get("contract_version"), content.get("features")
    command = f"{_REMEDY}: trigraph export MODEL.gguf -o {folder} --force"
    if version != CONTRACT_VERSION:
        raise TrigraphError(
            f"{path}: contract_version is {quote(version)}, this program reads {CONTRACT_VERSION}; {command}"
        )
    if isinstance(features, list) and (unknown := [name for name in features if name not in FEATURES]):
        raise TrigraphError(
            f"{path}: the package has the feature {quote(unknown[0])}, and this program knows {', '.join(FEATURES)}; "
            f"update trigraph, or {command}"
        )
    manifest: Manifest = decode(Manifest, content, str(path), _REMEDY)
    if features != [*manifest.features]:
        raise TrigraphError(f"{path}: key 'features' is {quote(features)}, expected {[*manifest.features]}; {_REMEDY}")
    _check(manifest, folder, path)
    return manifest


def is_package(folder: Path) -> bool:
    """Whether a folder holds what looks like a package, of any contract version."""
    try:
        return _load(folder / FILE_NAME).get("format") == FORMAT
    except TrigraphError:
        return False


def _check(manifest: Manifest, folder: Path, path: Path) -> None:
    if unknown := [name for name in manifest.graphs if name not in GRAPHS]:
        raise TrigraphError(
            f"{path}: key 'graphs' names {quote(unknown[0])}, expected some of {', '.join(GRAPHS)}; {_REMEDY}"
        )
    base = manifest.weights_folder
    if base is not None and not (Path(base).is_absolute() and can_be_named(base)):
        raise TrigraphError(f"{path}: key 'weights_folder' is {quote(base)}, expected an absolute path; {_REMEDY}")
    check_values(manifest, path)
    for name in manifest.graphs:
        if not os.path.lexists(folder / f"{name}.onnx"):
            raise TrigraphError(f"{folder}: the package has no {name}.onnx; {_REMEDY}")
        file_inside(folder, f"{name}.onnx", _MAX_GRAPH_BYTES)
    for file in manifest.weight_files:
        if not stays_inside(file.location):
            raise TrigraphError(f"{path}: weight file {quote(file.location)} is not a path inside a folder; {_REMEDY}")
        _check_weights(file, manifest.weights_base(folder), folder)


def _load(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):
        found = f"it has no {FILE_NAME}; give a folder that 'trigraph export' wrote, or a .gguf file"
        raise wrong_path(path.parent, f"is not a trigraph package: {found}")
    file_inside(path.parent, path.name, _MAX_BYTES)
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise TrigraphError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TrigraphError(f"{path}: is not valid JSON ({error}); {_REMEDY}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TrigraphError(f"{path}: is not the manifest of a {FORMAT}")
    return content


def _check_weights(expected: WeightFile, base: Path, package: Path) -> None:
    """Check that a weight file, at its location in the folder `base`, is the one that the package was made from.

    A file outside of the package must be GGUF: an untrusted package cannot make a host read anything else.
    """
    path = base / expected.location
    try:
        size = path.stat().st_size
        file_inside(base, expected.location, size)
        if size != expected.bytes:
            raise _changed(path, f"{size} bytes, not {expected.bytes}")
        with open(path, "rb") as file:
            is_gguf = file.read(4) == b"GGUF"
        if not is_gguf and not (path.name == SIDE_FILE and os.path.samefile(path.parent, package)):
            raise TrigraphError(f"{path}: the package's weights are not a GGUF file; {_REMEDY}")
        if sha256_of_start(path, expected.header_bytes) != expected.header_sha256:
            raise _changed(path, "another header")
        if sha256_of_sample(path) != expected.sample_sha256:
            raise _changed(path, "other tensor data")
    except FileNotFoundError:
        raise TrigraphError(f"{path}: the package's weights are gone; put the file back, or {_REMEDY}") from None
    except OSError as error:
        raise TrigraphError(f"{path}: the package's weights cannot be read: {error.strerror}") from error


def _changed(path: Path, found: str) -> TrigraphError:
    return TrigraphError(f"{path}: the package's weights have changed since the export ({found}); {_REMEDY}")
