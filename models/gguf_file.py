"""A GGUF file as a user names it: one file, or the parts of a split one; its tensors' bytes and values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from trigraph.models.errors import TrigraphError, quote
from trigraph.models.gguf_header import Header, Tensor, read_header
from trigraph.models.tensor_types import dequantize

__all__ = ["GGUFFile", "Pieces", "Tensor"]

Pieces: TypeAlias = Callable[[], Iterable[npt.NDArray[np.uint8]]]
"""Yields the bytes of a tensor, whole rows at a time."""

_PART_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """One logical file; the parts of a split file are joined."""

    paths: tuple[Path, ...]
    metadata: Mapping[str, Any] = field(repr=False)
    """What the first part says: int, float, bool, str, list[str], and NumPy arrays of numbers and booleans."""
    tensors: Mapping[str, Tensor] = field(repr=False)
    alignment: int
    header_bytes: Mapping[Path, int]
    """For each path, the number of bytes before the tensor data."""
    made: Mapping[str, Pieces] = field(default_factory=dict, repr=False)
    """What yields the bytes of each tensor that is made of others."""
    others: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """The tensors of the vision tower, where it is in the text model's file."""
    notices: tuple[str, ...] = ()
    """What a user should know of the file, one sentence each."""
    _maps: dict[Path, npt.NDArray[np.uint8]] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """Read the header of `path`, and of the other parts if it is one part of a split file.

        Raises TrigraphError for anything that is not a complete and well-formed GGUF file.
        """
        headers = _read_parts(Path(path))
        tensors: dict[str, Tensor] = {}
        for header in headers:
            for name, tensor in header.tensors.items():
                if name in tensors:
                    first = tensors[name].file.name
                    raise TrigraphError(
                        f"{header.path}: tensor {quote(name)} is also in {first}; download the parts again"
                    )
                tensors[name] = tensor
        return cls(
            paths=tuple(header.path for header in headers),
            metadata=MappingProxyType(headers[0].metadata),
            tensors=MappingProxyType(tensors),
            alignment=headers[0].alignment,
            header_bytes=MappingProxyType({header.path: header.data_offset for header in headers}),
        )

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, mapped from the file unless they have to be made: uint8 [nbytes], read-only."""
        if name in self.made:
            return np.concatenate([*self.pieces(name)])
        return self.bytes_of(self.tensors[name])

    def bytes_of(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor that lies in the file, mapped."""
        assert tensor.offset is not None
        if tensor.file not in self._maps:
            self._maps[tensor.file] = np.memmap(tensor.file, dtype=np.uint8, mode="r")
        return self._maps[tensor.file][tensor.offset : tensor.offset + tensor.nbytes]

    def pieces(self, name: str) -> Iterable[npt.NDArray[np.uint8]]:
        """The bytes of a tensor in pieces of whole rows."""
        return self.made[name]() if name in self.made else [self.raw(name)]

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor in float32, dequantised by `gguf.quants`. An F32 tensor is a read-only view of the file."""
        tensor = self.tensors[name]
        rows = self.raw(name).reshape(*tensor.shape[:-1], tensor.row_bytes)
        try:
            values = dequantize(rows, tensor.type)
        except NotImplementedError as error:
            raise TrigraphError(
                f"{tensor.file}: tensor {quote(name)} has type {tensor.type}, which cannot be read; "
                "use another quantisation"
            ) from error
        return values.reshape(tensor.shape)

    def header_sha256(self, path: Path) -> str:
        """SHA-256 of the bytes of `path` (one of `paths`) that come before the tensor data."""
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(self.header_bytes[path])).hexdigest()


def _read_parts(path: Path) -> list[Header]:
    """The headers of all parts, in order; `path` may be any one of them."""
    opened = read_header(path)
    if (count := _split_key(opened, "split.count", 1)) <= 1:
        return [opened]
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise TrigraphError(
            f"{path}: is one of {count} parts, but its name does not end in -NNNNN-of-{count:05}.gguf; "
            "give the parts their original names, or join them with 'llama-gguf-split --merge'"
        )
    headers: list[Header] = []
    for number in range(1, count + 1):
        # Built from this file's own name, so that a header cannot lead out of the folder.
        part = path.with_name(f"{match['prefix']}-{number:05}-of-{count:05}.gguf")
        if not part.exists():
            raise TrigraphError(f"{part}: is missing; put all {count} parts into one folder")
        headers.append(opened if part == path else read_header(part))
        split = (_split_key(headers[-1], "split.no", 0), _split_key(headers[-1], "split.count", 1))
        if split != (number - 1, count):
            raise TrigraphError(
                f"{part}: split.no and split.count are {split}, expected {(number - 1, count)}; "
                "the parts do not belong together, download them again"
            )
    total = sum(len(header.tensors) for header in headers)
    expected = _split_key(headers[0], "split.tensors.count", total)
    if expected != total:
        raise TrigraphError(
            f"{path}: the parts hold {total} tensors, split.tensors.count says {expected}; download them again"
        )
    return headers


def _split_key(header: Header, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int:
        raise TrigraphError(
            f"{header.path}: key {key!r} is {quote(value)}, expected an integer; download the file again"
        )
    return value
