"""The header of one GGUF file, versions 2 and 3, little-endian.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, two counts, key/value pairs, tensor
descriptions, padding to `general.alignment`, tensor data. Every length found in a header is compared with the bytes
that are left before anything of that length is made, so a malformed file costs neither time nor memory.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from trigraph.models.errors import TrigraphError, quote
from trigraph.models.wrong_path import wrong_path

# A header holds the vocabulary and the tensor list: about 11 MB for 250,000 tokens.
MAX_HEADER_BYTES = 64 << 20
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1024
DEFAULT_ALIGNMENT = 32

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_MIN_PAIR_BYTES = 13
_MIN_TENSOR_BYTES = 32
_DAMAGED = "the file is damaged, download it again"
# What other files start with, and what to do about them.
_OTHERS = {
    b"version https://git-lfs": "is a pointer of Git LFS in the place of the file; fetch it with 'git lfs pull'",
    b"<": "is a web page; download the file itself, by its 'resolve' address where that is on Hugging Face",
    b"PK\x03\x04": "is a ZIP archive; unpack it",
    b"\x1f\x8b": "is compressed by gzip; unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; unpack it",
    b"tjgg": "is a file from before GGUF; convert the model again",
    b"fmgg": "is a file from before GGUF; convert the model again",
    bytes(4): "starts with zeros; its download did not finish, start it again",
}


@dataclass(frozen=True)
class Tensor:
    """One tensor as it lies in a file."""

    name: str
    type: str
    """ggml's name of the element or block type: "F32", "Q4_K", ..."""
    shape: tuple[int, ...]
    """NumPy order, the contiguous dimension last (ggml's `ne` reversed)."""
    file: Path
    offset: int | None
    """From the start of the file, in bytes; None where its bytes lie nowhere in it, but are made of other tensors'."""
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: of `shape[-1]` consecutive elements."""
        return self.nbytes // math.prod(self.shape[:-1])


@dataclass(frozen=True)
class Header:
    """What one file says of itself."""

    path: Path
    metadata: dict[str, Any]
    """Values are int, float, bool, str, list[str], and NumPy arrays for arrays of numbers and booleans."""
    tensors: dict[str, Tensor]
    alignment: int
    data_offset: int
    """Bytes before the tensor data."""


def read_header(path: Path) -> Header:
    """Raises TrigraphError for anything that is not a complete and well-formed GGUF file."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise wrong_path(path, "is not a file")
        if status.st_size < 24:
            raise TrigraphError(f"{path}: is not a GGUF file: it has only {status.st_size} bytes")
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), min(status.st_size, MAX_HEADER_BYTES), access=mmap.ACCESS_READ) as data,
        ):
            return _parse(_Cursor(path, data, status.st_size))
    except OSError as error:
        raise wrong_path(path, f"cannot be read: {error.strerror}") from error


class _Cursor:
    """Reads forward through the mapped header; refuses to step past its end."""

    def __init__(self, path: Path, data: mmap.mmap, file_size: int) -> None:
        self.path, self.data, self.at, self.file_size = path, data, 0, file_size

    def fail(self, text: str) -> NoReturn:
        raise TrigraphError(f"{self.path}: {text}")

    def need(self, count: int, what: str) -> None:
        """Check that `count` more bytes exist."""
        left = len(self.data) - self.at
        if count > left:
            limit = "the file ends" if len(self.data) == self.file_size else "a header may only go on"
            self.fail(
                f"{what} needs {count} bytes, but {limit} after {left}; it is truncated or damaged, download it again"
            )

    def scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize(code)
        self.need(size, what)
        (value,) = struct.unpack_from(code, self.data, self.at)
        self.at += size
        return value

    def string(self, what: str, *, strict: bool = True) -> str:
        length = self.scalar("<Q", what)
        self.need(length, what)
        self.at += length
        return self.text(self.data[self.at - length : self.at], what, strict=strict)

    def name(self, what: str) -> str:
        length = self.scalar("<Q", what)
        if length > MAX_NAME_BYTES:
            self.fail(f"{what} has {length} bytes, expected at most {MAX_NAME_BYTES}; {_DAMAGED}")
        self.at -= 8
        return self.string(what)

    def text(self, raw: bytes, what: str, *, strict: bool = True) -> str:
        try:
            return raw.decode(errors="strict" if strict else "replace")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8 text: {quote(raw)}; {_DAMAGED}")

    def value(self, what: str, *, strict: bool) -> Any:
        """The value of a metadata pair, its type first. A string that is not text is refused if `strict`."""
        kind = self.scalar("<I", what)
        if kind == _STRING:
            return self.string(what, strict=strict)
        if kind == _ARRAY:
            kind = self.scalar("<I", what)
            if kind == _ARRAY:
                self.fail(f"{what} is an array of arrays, which is not supported; use a file without it")
            return self.array(kind, self.scalar("<Q", what), what)
        item = self.numbers(kind, 1, what)[0].item()
        return bool(item) if kind == _BOOL else item

    def array(self, kind: int, count: int, what: str) -> list[str] | npt.NDArray[Any]:
        if kind == _STRING:
            return self.strings(count, what)
        numbers = self.numbers(kind, count, what)
        return numbers != 0 if kind == _BOOL else numbers

    def numbers(self, kind: int, count: int, what: str) -> npt.NDArray[Any]:
        if kind not in _SCALARS:
            self.fail(f"{what} has the unknown value type {kind}; {_DAMAGED}")
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
        return [self.text(item, f"item {index} of {what}") for index, item in enumerate(raw)]


def _parse(cursor: _Cursor) -> Header:
    magic = cursor.data[:4]
    if magic != b"GGUF":
        other = next((text for start, text in _OTHERS.items() if cursor.data[: len(start)] == start), None)
        if cursor.data[8:10] == b'{"':
            other = "is a safetensors file; convert the model, or look for a GGUF file of it"
        cursor.fail(other or f"is not a GGUF file: it starts with {magic!r}")
    cursor.at = 4
    version = cursor.scalar("<I", "the version")
    if version in (2 << 24, 3 << 24):
        cursor.fail("is a big-endian GGUF file; convert it to little-endian")
    if version not in (2, 3):
        cursor.fail(f"has GGUF version {version}, supported are 2 and 3; convert the model again")
    tensors, pairs = cursor.scalar("<Q", "the header"), cursor.scalar("<Q", "the header")
    cursor.need(
        _MIN_PAIR_BYTES * pairs + _MIN_TENSOR_BYTES * tensors, f"a header of {pairs} keys and {tensors} tensors"
    )

    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.name("the name of a key")
        if key in metadata:
            cursor.fail(f"key {quote(key)} appears twice; {_DAMAGED}")
        metadata[key] = cursor.value(f"key {quote(key)}", strict=not key.startswith("general."))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        cursor.fail(f"key 'general.alignment' is {quote(alignment)}, expected a power of two; convert the model again")

    described = [_describe_tensor(cursor) for _ in range(tensors)]
    data_offset = -(-cursor.at // alignment) * alignment
    placed: dict[str, Tensor] = {}
    for tensor, offset in described:
        if tensor.name in placed:
            cursor.fail(f"tensor {quote(tensor.name)} appears twice; {_DAMAGED}")
        placed[tensor.name] = _place_tensor(cursor, tensor, offset, data_offset, alignment)
    return Header(cursor.path, metadata, placed, alignment, data_offset)


def _describe_tensor(cursor: _Cursor) -> tuple[Tensor, int]:
    """A tensor, and its offset in the data."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # a package needs none of it

    name = cursor.name("the name of a tensor")
    what = f"tensor {quote(name)}"
    rank = cursor.scalar("<I", what)
    if not 1 <= rank <= MAX_DIMENSIONS:
        cursor.fail(f"{what} has {rank} dimensions, expected 1 to {MAX_DIMENSIONS}; {_DAMAGED}")
    shape = tuple(cursor.scalar("<Q", what) for _ in range(rank))[::-1]
    code, offset = cursor.scalar("<I", what), cursor.scalar("<Q", what)
    try:
        kind = GGMLQuantizationType(code)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        cursor.fail(f"{what} has the unknown type {code}; use a file of another quantisation")
    if 0 in shape or shape[-1] % block:
        rule = f"rows of {kind.name} are multiples of {block} elements and never empty"
        cursor.fail(f"{what} has shape {shape}, but {rule}; convert the model again")
    return Tensor(name, kind.name, shape, cursor.path, None, math.prod(shape) // block * block_bytes), offset


def _place_tensor(cursor: _Cursor, tensor: Tensor, offset: int, data_offset: int, alignment: int) -> Tensor:
    what = f"tensor {quote(tensor.name)} {tensor.shape}"
    if offset % alignment:
        cursor.fail(f"{what} has offset {offset}, expected a multiple of {alignment}; {_DAMAGED}")
    start = data_offset + offset
    end = start + tensor.nbytes
    if end > cursor.file_size:
        size = cursor.file_size
        cursor.fail(
            f"{what} ends at byte {end}, but the file has {size}; it is truncated or damaged, download it again"
        )
    return replace(tensor, offset=start)
