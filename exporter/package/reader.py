"""Reads a package's manifest, and checks it and the files that it names."""

from __future__ import annotations

import dataclasses
import json
import os
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from trigraph.exporter.package.consistency import check_values
from trigraph.exporter.package.fingerprint import sha256_of_sample, sha256_of_start
from trigraph.exporter.package.manifest import (
    CONTRACT_VERSION,
    FILE_NAME,
    FORMAT,
    GRAPHS,
    SIDE_FILE,
    Manifest,
    WeightFile,
)
from trigraph.exporter.package.paths import file_inside, stays_inside
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.wrong_path import wrong_path

_MAX_BYTES = 16 << 20
_MAX_GRAPH_BYTES = 1 << 30
_REMEDY = "export the package again"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the package in `folder`; the files that it names have been checked.

    Raises TrigraphError for another contract version, a malformed manifest, a missing graph, and weights that are
    gone or no longer those of the export.
    """
    path = folder / FILE_NAME
    content = _load(path)
    version = content.get("contract_version")
    if version != CONTRACT_VERSION:
        raise TrigraphError(
            f"{path}: contract_version is {quote(version)}, this program reads {CONTRACT_VERSION}; {_REMEDY}"
        )
    manifest: Manifest = _decode(Manifest, content, "", path)
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
    if manifest.weights_folder is not None and not Path(manifest.weights_folder).is_absolute():
        raise TrigraphError(
            f"{path}: key 'weights_folder' is {quote(manifest.weights_folder)}, expected an absolute path; {_REMEDY}"
        )
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
        raise wrong_path(path.parent, f"is not a trigraph package: it has no {FILE_NAME}")
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


def _decode(kind: Any, value: Any, key: str, path: Path) -> Any:
    """`value` from JSON as an instance of `kind`: a scalar, an optional or union, a tuple of one kind, a dataclass."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        for option in get_args(kind):
            if _is_scalar(option, value):
                return value
            if dataclasses.is_dataclass(option) and isinstance(value, Mapping):
                return _decode_fields(option, value, f"{key}.", path)
    elif origin is tuple and isinstance(value, list):
        return tuple(_decode(get_args(kind)[0], item, f"{key}[{index}]", path) for index, item in enumerate(value))
    elif dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return _decode_fields(kind, value, f"{key}." if key else "", path)
    elif _is_scalar(kind, value):
        return value
    raise TrigraphError(f"{path}: key {key!r} is {quote(str(value))}, which has the wrong type; {_REMEDY}")


def _decode_fields(kind: Any, value: Mapping[str, Any], prefix: str, path: Path) -> Any:
    hints = get_type_hints(kind)
    fields = {}
    for field in dataclasses.fields(kind):
        if field.name not in value:
            if field.default_factory is not dataclasses.MISSING:
                continue
            raise TrigraphError(f"{path}: key '{prefix}{field.name}' is missing; {_REMEDY}")
        fields[field.name] = _decode(hints[field.name], value[field.name], prefix + field.name, path)
    return kind(**fields)


def _is_scalar(kind: Any, value: Any) -> bool:
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


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
