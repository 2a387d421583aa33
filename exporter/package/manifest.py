"""manifest.json: what a host needs to know of a package before it opens a graph."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from trigraph.exporter.package.consistency import check_values
from trigraph.exporter.package.paths import file_inside, stays_inside
from trigraph.exporter.package.state_tensors import StateTensor
from trigraph.models.config import ModelConfig
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.tokenizer import SpecialTokens

CONTRACT_VERSION = 1
"""Version of the graphs' inputs, outputs and state, theirs as well as the manifest's; a host refuses any other."""
FILE_NAME = "manifest.json"
GRAPHS = ("prefill", "draft", "verify")
SIDE_FILE = "side.bin"

_FORMAT = "trigraph package"
_MAX_BYTES = 16 << 20
_MAX_GRAPH_BYTES = 1 << 30
_REMEDY = "export the package again"


@dataclass(frozen=True)
class WeightFile:
    """A file that graphs point into, and how to tell that it is still the same one."""

    location: str
    """Path relative to the folder of the weights, with forward slashes; graphs state the same."""
    bytes: int
    header_bytes: int
    """How many bytes from the start `header_sha256` covers: in a GGUF, all before the tensor data."""
    header_sha256: str

    @classmethod
    def of(cls, path: Path, location: str, header_bytes: int) -> WeightFile:
        """Describe an existing file."""
        return cls(location, path.stat().st_size, header_bytes, _sha256(path, header_bytes))


@dataclass(frozen=True)
class OperatorLibrary:
    """The library of custom operators that graphs were made for."""

    name: str
    """Domain of the operators; the file for a provider is lib{name}_{provider}.so, .dylib, or {name}_{provider}.dll."""
    version: str
    """A library that differs in the first two numbers is refused."""


@dataclass(frozen=True)
class Manifest:
    """A package's description, everything that its graphs do not say themselves."""

    config: ModelConfig
    special_tokens: SpecialTokens
    graphs: tuple[str, ...]
    """Those of GRAPHS that exist, each in `{name}.onnx`; a model without an MTP head has no draft."""
    operator_library: OperatorLibrary
    state: tuple[StateTensor, ...]
    weight_files: tuple[WeightFile, ...]
    weights_folder: str | None
    """Absolute folder of the weight files when they are referenced in place, None when the package holds them."""
    max_context: int
    """Most positions of a sequence."""
    max_pending: int
    """K: most tokens of a sequence in one verify."""
    page_size: int
    draft_vocab: int | None
    """How many token ids the draft can choose from; None in a package without a draft."""
    kv_type: str
    activations: str
    portable: bool
    """Whether graphs carry function bodies. A host without the operator library then runs them, on two buffers for each
    state tensor that it swaps after each step: native operators may write an output before another reads the input."""
    notices: tuple[str, ...]
    """What the export changed, one sentence each."""

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read a package's manifest and check the files that it names.

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
        manifest: Manifest = _decode(cls, content, "", path)
        manifest._check(folder, path)
        return manifest

    def write(self, folder: Path) -> None:
        """Write manifest.json."""
        content = {"format": _FORMAT, "contract_version": CONTRACT_VERSION, **dataclasses.asdict(self)}
        (folder / FILE_NAME).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def check_library(self, version: str) -> None:
        """Raise TrigraphError unless an operator library of `version` runs the graphs."""
        wanted = self.operator_library
        if version.split(".")[:2] != wanted.version.split(".")[:2]:
            raise TrigraphError(
                f"the package was exported for version {wanted.version} of the operator library {wanted.name!r}, "
                f"and the one here is {version}; {_REMEDY}, or install the other version of trigraph"
            )

    def weight_paths(self, folder: Path) -> dict[str, Path]:
        """Where the weight files of the package in `folder` are, by location."""
        base = folder if self.weights_folder is None else Path(self.weights_folder)
        return {file.location: base / file.location for file in self.weight_files}

    def _check(self, folder: Path, path: Path) -> None:
        if unknown := [name for name in self.graphs if name not in GRAPHS]:
            raise TrigraphError(
                f"{path}: key 'graphs' names {quote(unknown[0])}, expected some of {', '.join(GRAPHS)}; {_REMEDY}"
            )
        if self.weights_folder is not None and not Path(self.weights_folder).is_absolute():
            raise TrigraphError(
                f"{path}: key 'weights_folder' is {quote(self.weights_folder)}, expected an absolute path; {_REMEDY}"
            )
        check_values(self, path)
        for name in self.graphs:
            if not os.path.lexists(folder / f"{name}.onnx"):
                raise TrigraphError(f"{folder}: the package has no {name}.onnx; {_REMEDY}")
            file_inside(folder, f"{name}.onnx", _MAX_GRAPH_BYTES)
        for file in self.weight_files:
            if not stays_inside(file.location):
                raise TrigraphError(
                    f"{path}: weight file {quote(file.location)} is not a path inside a folder; {_REMEDY}"
                )
            _check_weights(file, folder if self.weights_folder is None else Path(self.weights_folder), folder)


def is_package(folder: Path) -> bool:
    """Whether a folder holds what looks like a package, of any contract version."""
    try:
        return _load(folder / FILE_NAME).get("format") == _FORMAT
    except TrigraphError:
        return False


def _load(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):
        raise TrigraphError(f"{path.parent}: is not a trigraph package: it has no {FILE_NAME}")
    file_inside(path.parent, path.name, _MAX_BYTES)
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise TrigraphError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TrigraphError(f"{path}: is not valid JSON ({error}); {_REMEDY}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise TrigraphError(f"{path}: is not the manifest of a {_FORMAT}")
    return content


def _decode(kind: Any, value: Any, key: str, path: Path) -> Any:
    """`value` from JSON as an instance of `kind`: a scalar, an optional or union, a tuple of one kind, a dataclass."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        for option in get_args(kind):
            if _is_scalar(option, value):
                return value
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
            raise TrigraphError(f"{path}: key '{prefix}{field.name}' is missing; {_REMEDY}")
        fields[field.name] = _decode(hints[field.name], value[field.name], prefix + field.name, path)
    return kind(**fields)


def _is_scalar(kind: Any, value: Any) -> bool:
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


def _check_weights(expected: WeightFile, base: Path, package: Path) -> None:
    """Check that a weight file, at its location in the folder `base`, is the one that the package was made from.

    What lies outside of the package must be a GGUF file: a package of a stranger makes nobody read anything else.
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
        if _sha256(path, expected.header_bytes) != expected.header_sha256:
            raise _changed(path, "another header")
    except FileNotFoundError:
        raise TrigraphError(f"{path}: the package's weights are gone; put the file back, or {_REMEDY}") from None
    except OSError as error:
        raise TrigraphError(f"{path}: the package's weights cannot be read: {error.strerror}") from error


def _changed(path: Path, found: str) -> TrigraphError:
    return TrigraphError(f"{path}: the package's weights have changed since the export ({found}); {_REMEDY}")


def _sha256(path: Path, count: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while count > 0 and (chunk := file.read(min(count, 1 << 20))):
            digest.update(chunk)
            count -= len(chunk)
    return digest.hexdigest()
