"""GGUF files, versions 2 and 3, little-endian: metadata, and where each tensor's bytes lie.

Layout of a file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, two counts, key/value pairs,
tensor descriptions, padding to `general.alignment`, tensor data. Every length found in a header is compared with the
bytes that are left before anything of that length is made, so a malformed file costs neither time nor memory.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from trigraph.models.errors import TrigraphError

# A header holds the vocabulary and the tensor list: about 11 MB for 250,000 tokens.
MAX_HEADER_BYTES = 64 << 20
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_PART_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class Tensor:
    """One tensor as it lies in a file."""

    name: str
    type: str
    """ggml's name of the element or block type: "F32", "Q4_K", ..."""
    shape: tuple[int, ...]
    """NumPy order, the contiguous dimension last (ggml's `ne` reversed)."""
    file: Path
    offset: int
    """From the start of the file, in bytes."""
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: of `shape[-1]` consecutive elements."""
        return self.nbytes // math.prod(self.shape[:-1])


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """One logical file; the parts of a split file are joined. `metadata` is the first part's.

    Metadata values are `int`, `float`, `bool`, `str`, `list[str]`, and one-dimensional NumPy arrays for arrays of numbers
    or booleans.
    """

    paths: tuple[Path, ...]
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, Tensor] = field(repr=False)
    alignment: int
    header_bytes: Mapping[Path, int]
    """For each path, the number of bytes before the tensor data."""
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
                    raise TrigraphError(
                        f"{header.path}: tensor {name!r} is also in {tensors[name].file.name}; download the parts again"
                    )
                tensors[name] = tensor
        expected = headers[0].metadata.get("split.tensors.count", len(tensors)) if len(headers) > 1 else len(tensors)
        if expected != len(tensors):
            raise TrigraphError(
                f"{headers[0].path}: the parts hold {len(tensors)} tensors, split.tensors.count says {expected}; download them again"
            )
        return cls(
            paths=tuple(header.path for header in headers),
            metadata=MappingProxyType(headers[0].metadata),
            tensors=MappingProxyType(tensors),
            alignment=headers[0].alignment,
            header_bytes=MappingProxyType({header.path: header.data_offset for header in headers}),
        )

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, mapped from the file: uint8 [nbytes], read-only."""
        tensor = self.tensors[name]
        if tensor.file not in self._maps:
            self._maps[tensor.file] = np.memmap(tensor.file, dtype=np.uint8, mode="r")
        return self._maps[tensor.file][tensor.offset : tensor.offset + tensor.nbytes]

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor in float32, dequantised by `gguf.quants`. F32 tensors are views of the file."""
        tensor = self.tensors[name]
        rows = self.raw(name).reshape(*tensor.shape[:-1], tensor.row_bytes)
        try:
            values = quants.dequantize(rows, GGMLQuantizationType[tensor.type])
        except NotImplementedError as error:
            raise TrigraphError(
                f"{tensor.file}: tensor {name!r} has type {tensor.type}, which cannot be read; use another quantisation"
            ) from error
        return values.reshape(tensor.shape)

    def header_sha256(self, path: Path) -> str:
        """SHA-256 of the bytes of `path` (one of `paths`) that come before the tensor data."""
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(self.header_bytes[path])).hexdigest()


@dataclass(frozen=True)
class _Header:
    """What one file says of itself."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    alignment: int
    data_offset: int


class _Cursor:
    """Reads forward through the mapped header; refuses to step past its end."""

    def __init__(self, path: Path, data: mmap.mmap, file_size: int) -> None:
        self.path, self.data, self.at, self.file_size = path, data, 0, file_size

    def fail(self, text: str) -> NoReturn:
        raise TrigraphError(f"{self.path}: {text}")

    def need(self, count: int, what: str) -> None:
        """Check that `count` more bytes exist."""
        if count <= len(self.data) - self.at:
            return
        if len(self.data) < self.file_size:
            self.fail(
                f"{what} needs {count} bytes, but a header may have at most {MAX_HEADER_BYTES}; the file is damaged, download it again"
            )
        self.fail(
            f"{what} needs {count} bytes, but the file ends after {len(self.data) - self.at}; it is truncated or damaged, download it again"
        )

    def scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize(code)
        self.need(size, what)
        (value,) = struct.unpack_from(code, self.data, self.at)
        self.at += size
        return value

    def string(self, what: str) -> str:
        length = self.scalar("<Q", what)
        self.need(length, what)
        self.at += length
        return self.text(self.data[self.at - length : self.at], what)

    def text(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8 text: {raw[:40]!r}; the file is damaged, download it again")

    def value(self, key: str) -> Any:
        """The value of a metadata pair, its type first."""
        what = f"key {key!r}"
        kind = self.scalar("<I", what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            kind = self.scalar("<I", what)
            return self.array(kind, self.scalar("<Q", what), what)
        if kind not in _SCALARS:
            self.fail(f"{what} has the unknown value type {kind}; the file is damaged or newer than this program")
        item = self.numbers(kind, 1, what)[0].item()
        return bool(item) if kind == _BOOL else item

    def array(self, kind: int, count: int, what: str) -> list[str] | npt.NDArray[Any]:
        if kind == _STRING:
            return self.strings(count, what)
        if kind not in _SCALARS:
            self.fail(
                f"{what} is an array of the unsupported value type {kind}; the file is damaged or newer than this program"
            )
        numbers = self.numbers(kind, count, what)
        return numbers != 0 if kind == _BOOL else numbers

    def numbers(self, kind: int, count: int, what: str) -> npt.NDArray[Any]:
        dtype = np.dtype(_SCALARS[kind])
        self.need(count * dtype.itemsize, what)
        values = np.frombuffer(self.data[self.at : self.at + count * dtype.itemsize], dtype)
        self.at += values.nbytes
        return values

    def strings(self, count: int, what: str) -> list[str]:
        self.need(8 * count, what)
        data, at, end = self.data, self.at, len(self.data)
        raw: list[bytes] = []
        for _ in range(count):  # hundreds of thousands of tokens: nothing else belongs into this loop
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            if at > end:
                self.at = min(start, end)
                self.need(at - self.at, f"item {len(raw)} of {what}")
            raw.append(data[start:at])
        self.at = at
        try:
            return list(map(bytes.decode, raw))
        except UnicodeDecodeError:
            return [self.text(item, f"item {index} of {what}") for index, item in enumerate(raw)]


def _read_parts(path: Path) -> list[_Header]:
    """The headers of all parts, in order; `path` may be any one of them."""
    header = _read_header(path)
    count = header.metadata.get("split.count", 1)
    if type(count) is not int or count < 1:
        raise TrigraphError(f"{path}: key 'split.count' is {count!r}, expected a positive integer")
    if count == 1:
        return [header]
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise TrigraphError(
            f"{path}: is one of {count} parts, but its name does not end in -00001-of-{count:05}.gguf; give the parts their original names"
        )
    headers = []
    for number in range(1, count + 1):
        # Built from this file's own name, so that a header cannot lead out of the folder.
        part = path.with_name(f"{match['prefix']}-{number:05}-of-{count:05}.gguf")
        headers.append(header if part == path else _read_header(part))
        found = (headers[-1].metadata.get("split.no"), headers[-1].metadata.get("split.count"))
        if found != (number - 1, count):
            raise TrigraphError(
                f"{part}: split.no and split.count are {found}, expected {(number - 1, count)}; the parts do not belong together"
            )
    return headers


def _read_header(path: Path) -> _Header:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise TrigraphError(f"{path}: is not a file")
        if status.st_size < 24:
            raise TrigraphError(f"{path}: is not a GGUF file: it has only {status.st_size} bytes")
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), min(status.st_size, MAX_HEADER_BYTES), access=mmap.ACCESS_READ) as data,
        ):
            return _parse_header(_Cursor(path, data, status.st_size))
    except OSError as error:
        raise TrigraphError(f"{path}: cannot be read: {error.strerror}") from error


def _parse_header(cursor: _Cursor) -> _Header:
    magic = cursor.data[:4]
    if magic != b"GGUF":
        cursor.fail(f"is not a GGUF file: it starts with {magic!r}")
    cursor.at = 4
    version = cursor.scalar("<I", "the version")
    if version not in (2, 3):
        big_endian = version in (2 << 24, 3 << 24)
        cursor.fail(
            "is a big-endian GGUF file; convert it to little-endian"
            if big_endian
            else f"has GGUF version {version}, supported are 2 and 3; convert the model again"
        )
    tensor_count, pair_count = cursor.scalar("<Q", "the header"), cursor.scalar("<Q", "the header")
    # The least that a pair (13 bytes) and a tensor description (32) can take.
    cursor.need(13 * pair_count + 32 * tensor_count, f"a header of {pair_count} keys and {tensor_count} tensors")

    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.string("the name of a key")
        if key in metadata:
            cursor.fail(f"key {key!r} appears twice; the file is damaged, download it again")
        metadata[key] = cursor.value(key)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        cursor.fail(f"key 'general.alignment' is {alignment!r}, expected a power of two; convert the model again")

    described = [_describe_tensor(cursor) for _ in range(tensor_count)]
    data_offset = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for tensor in described:
        if tensor.name in tensors:
            cursor.fail(f"tensor {tensor.name!r} appears twice; the file is damaged, download it again")
        tensors[tensor.name] = _place_tensor(cursor, tensor, data_offset, alignment)
    return _Header(cursor.path, metadata, tensors, alignment, data_offset)


def _describe_tensor(cursor: _Cursor) -> Tensor:
    """A tensor with its offset still relative to the data."""
    name = cursor.string("the name of a tensor")
    what = f"tensor {name!r}"
    rank = cursor.scalar("<I", what)
    if not 1 <= rank <= MAX_DIMENSIONS:
        cursor.fail(
            f"{what} has {rank} dimensions, expected 1 to {MAX_DIMENSIONS}; the file is damaged, download it again"
        )
    shape = tuple(cursor.scalar("<Q", what) for _ in range(rank))[::-1]
    code, offset = cursor.scalar("<I", what), cursor.scalar("<Q", what)
    try:
        kind = GGMLQuantizationType(code)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        cursor.fail(f"{what} has the unknown type {code}; use a file of another quantisation")
    if 0 in shape or shape[-1] % block:
        cursor.fail(
            f"{what} has shape {shape}: rows of {kind.name} must be multiples of {block} elements, and none may be empty; convert the model again"
        )
    return Tensor(name, kind.name, shape, cursor.path, offset, math.prod(shape) // block * block_bytes)


def _place_tensor(cursor: _Cursor, tensor: Tensor, data_offset: int, alignment: int) -> Tensor:
    if tensor.offset % alignment:
        cursor.fail(
            f"tensor {tensor.name!r} has offset {tensor.offset}, expected a multiple of {alignment}; the file is damaged, download it again"
        )
    start = data_offset + tensor.offset
    if start + tensor.nbytes > cursor.file_size:
        cursor.fail(
            f"tensor {tensor.name!r} {tensor.shape} ends at byte {start + tensor.nbytes}, but the file has {cursor.file_size}; "
            "it is truncated or damaged, download it again"
        )
    return Tensor(tensor.name, tensor.type, tensor.shape, tensor.file, start, tensor.nbytes)
