"""Files of named tensors in the safetensors format: written in pieces, whole or not at all, and read with checks."""

from __future__ import annotations

import json
import math
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError, safe_open

from trigraph.models.errors import TrigraphError, file_errors, quote
from trigraph.models.staging import check_writable, staged_file

_DTYPES = {"float16": "F16", "float32": "F32", "uint8": "U8", "int64": "I64"}
_CHECKSUMS = "crc32"
_MAKE_ROOM = "; choose another file, or make room"
PIECE = 16 << 20
"""Bytes that a large tensor is read and written in."""
# What reading a file takes, with its checksums: seconds to open it, and bytes a second.
_OPENING, _BYTES_A_SECOND = 0.005, 500e6


def reading_seconds(size: int) -> float:
    """Seconds that a file of so many bytes takes to read."""
    return _OPENING + size / _BYTES_A_SECOND


@dataclass(frozen=True)
class Pieces:
    """A tensor to write, as arrays that make it up one after the other."""

    name: str
    dtype: DTypeLike
    shape: tuple[int, ...]
    arrays: Iterable[NDArray[Any]]


def write_tensors(path: Path, tensors: Sequence[Pieces], metadata: Mapping[str, str]) -> None:
    """Writes a file that takes the place of the one at `path` when it is whole.

    The tensor `crc32` (int64) at its end has the sums of the others, and the entry `crc32` that of the metadata.

    `safetensors` itself would want every tensor in one piece: a second copy of a long sequence's KV pages. Raises
    TrigraphError when the file cannot be written.
    """
    with file_errors(path, "written", _MAKE_ROOM), staged_file(path) as stage, open(stage, "wb") as file:
        _write(file, tensors, metadata)


def check_tensors_writable(path: Path) -> None:
    """Raises TrigraphError when `write_tensors` could not make a file at `path`, be there room or not."""
    with file_errors(path, "written", _MAKE_ROOM):
        check_writable(path)


def _write(file: IO[bytes], tensors: Sequence[Pieces], metadata: Mapping[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": {**metadata, _CHECKSUMS: _sum_of(metadata)}}
    end = 0
    for tensor in (*tensors, Pieces(_CHECKSUMS, np.int64, (len(tensors),), ())):
        dtype = np.dtype(tensor.dtype)
        start, end = end, end + int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
        header[tensor.name] = {"dtype": _DTYPES[dtype.name], "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    sums = dict.fromkeys((tensor.name for tensor in tensors), 0)
    for tensor in tensors:
        for array in tensor.arrays:
            data = np.ascontiguousarray(array, tensor.dtype).data
            sums[tensor.name] = zlib.crc32(data, sums[tensor.name])
            file.write(data)
    file.write(np.array([sums[name] for name in sorted(sums)], np.int64).data)


class FileError(TrigraphError):
    """A file cannot be used."""

    def __init__(self, path: Path, sentence: str) -> None:
        super().__init__(f"{path}: {sentence}")
        self.path = path


class TensorFile:
    """Such a file, or what somebody else calls one: nothing is allocated for a length that the file does not have."""

    def __init__(self, path: Path, what: str) -> None:
        """`what` the file should be, for the error. Raises TrigraphError when it is not a whole file of tensors."""
        self._path, self._what = path, what
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise FileError(path, "is not a file")
            file: Any = safe_open(path, framework="np")  # without types of its own
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror or error}") from error
        except SafetensorError as error:
            raise (self.damaged(str(error)) if _has_header(path) else self._other()) from error
        self._file = file
        self.metadata: dict[str, str] = file.metadata() or {}
        if _CHECKSUMS not in self.metadata:
            raise self._other()
        if self.metadata.pop(_CHECKSUMS) != _sum_of(self.metadata):
            raise self.damaged("its metadata has another checksum")
        self.names = frozenset(file.keys())
        summed = sorted(self.names - {_CHECKSUMS})
        self._sums = dict(zip(summed, self._tensor(_CHECKSUMS, np.int64, (len(summed),)).tolist(), strict=True))

    def _other(self) -> FileError:
        """The error for a file of another kind, which nobody should remove."""
        return FileError(self._path, f"is not {self._what}; name a new file, or one that was saved as such")

    def damaged(self, reason: str) -> FileError:
        """The error that says that the file is of no use."""
        return FileError(self._path, f"is not {self._what}, or damaged ({reason}); remove it, or name another file")

    def rows(self, name: str) -> int:
        """The first dimension of a tensor, 0 when there is none."""
        return next(iter(self._file.get_slice(name).get_shape()), 0) if name in self.names else 0

    def read(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """A tensor, which must have this type and shape, and still be what was written."""
        array = self._tensor(name, dtype, shape)
        self._check(name, zlib.crc32(array.data))
        return array

    def pieces(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> Iterator[tuple[int, NDArray[Any]]]:
        """A tensor in pieces: rows, and the number of the first one. Its checksum is checked after the last piece."""
        view, checksum = self._view(name, dtype, shape), 0
        step = max(1, PIECE // (math.prod(shape[1:]) * np.dtype(dtype).itemsize))
        for start in range(0, shape[0], step):
            rows: NDArray[Any] = view[start : min(start + step, shape[0])]
            checksum = zlib.crc32(rows.data, checksum)
            yield start, rows
        self._check(name, checksum)

    def _check(self, name: str, checksum: int) -> None:
        if checksum != self._sums[name]:
            raise self.damaged(f"tensor {quote(name)} has another checksum")

    def _tensor(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        self._view(name, dtype, shape)
        array: NDArray[Any] = self._file.get_tensor(name)
        return array

    def _view(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """What rows of a tensor are read from."""
        view, found = None, None
        if name in self.names:
            view = self._file.get_slice(name)
            found = (view.get_dtype(), tuple(view.get_shape()))
        wanted = (_DTYPES[np.dtype(dtype).name], shape)
        if found != wanted:
            raise self.damaged(f"tensor {quote(name)} is {found and quote(found)}, expected {wanted}")
        return view


def _has_header(path: Path) -> bool:
    """Whether a file begins as files of tensors do, as far as it goes: with the length of a JSON object, and that."""
    with open(path, "rb") as file:
        return b"{".startswith(file.read(9)[8:])


def _sum_of(metadata: Mapping[str, str]) -> str:
    return str(zlib.crc32(json.dumps(metadata, sort_keys=True).encode()))
