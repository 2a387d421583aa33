"""Weight files, mapped once for all graphs of a package."""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from trigraph.models.errors import TrigraphError, file_errors, quote
from trigraph.models.names import NGRAM_TABLE
from trigraph.runtime.device.heap import POPULATE_READ, RANDOM, advise
from trigraph.runtime.device.memory import free_memory

_REMEDY = "export the package again"
_DTYPES: dict[int, np.dtype[Any]] = {
    onnx.TensorProto.UINT8: np.dtype(np.uint8),
    onnx.TensorProto.FLOAT: np.dtype(np.float32),
    onnx.TensorProto.FLOAT16: np.dtype(np.float16),
    onnx.TensorProto.BFLOAT16: np.dtype(np.uint16),
}
_MAX_RANK = 8
_STRETCH = 64 << 20  # bytes populated in one call, so that the end of a program waits for no more


class _MappedFile(NamedTuple):
    path: Path
    descriptor: int
    stamp: tuple[int, int]
    """Its size in bytes and the time of its last change."""


class MappedWeights:
    """Weight files by location, open and mapped for as long as a graph reads them.

    A file that is deleted, or replaced by another one of its name, lives on for those who have it open. One that is
    written in place changes under the model, which `check` notices; one that is cut short in place ends the process at
    the next read.
    """

    def __init__(self, files: Mapping[str, Path] | None = None) -> None:
        self.uploaded = 0
        """Bytes that devices have copies of."""
        self._files: list[_MappedFile] = []
        self._bytes: dict[str, NDArray[np.uint8]] = {}
        self._tables: dict[str, NDArray[np.uint8]] = {}  # by location: what only few rows are read of
        for location, path in (files or {}).items():
            with file_errors(path):
                descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
                weakref.finalize(self, os.close, descriptor)
                stamp = _stamp(descriptor)
                # By its descriptor: another file may have the name by now.
                mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if stamp[0] else b""
            self._bytes[location] = np.frombuffer(mapped, np.uint8)
            self._files.append(_MappedFile(path, descriptor, stamp))

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self._bytes.values()))

    @property
    def resident_bytes(self) -> int:
        """Bytes of all files but for n-gram tables that graphs have asked for."""
        return sum(len(part) for file in self._bytes for part in self._without_table(file))

    def check(self) -> None:
        """Raise TrigraphError when a file was written since the model was loaded."""
        for file in self._files:
            if _stamp(file.descriptor) != file.stamp:
                raise TrigraphError(f"{file.path}: the weights were written to while in use; load the model again")

    def initializers(self, path: Path, graph: onnx.GraphProto) -> dict[str, ort.OrtValue]:
        """The graph's external initializers, in the mapped files: no copy, and one mapping for all sessions.

        Raises TrigraphError when a tensor of the graph in file `path` is not inside its file.
        """
        for tensor in graph.initializer:
            if tensor.name == NGRAM_TABLE and tensor.data_location == onnx.TensorProto.EXTERNAL:
                self._keep_on_disk(path, tensor)
        return {
            tensor.name: self._value(path, tensor)
            for tensor in graph.initializer
            if tensor.data_location == onnx.TensorProto.EXTERNAL
        }

    def read_ahead(self) -> threading.Thread | None:
        """Maps all pages in the background, so that no step waits for the first touch of an expert.

        Those of n-gram tables are left out. None, and nothing is done, where the system cannot or where the others
        would not fit into free memory.
        """
        free, wanted = free_memory(), [part for file in self._bytes for part in self._without_table(file)]
        if sys.platform != "linux" or free is None or sum(map(len, wanted)) > free:
            return None
        thread = threading.Thread(target=_populate, args=(wanted,), name="trigraph-reading", daemon=True)
        thread.start()
        return thread

    def _keep_on_disk(self, path: Path, tensor: onnx.TensorProto) -> None:
        """Has the system read single pages of a table: what lies beside a row is of no use."""
        location, table = self.array(path, tensor)
        self._tables[location] = data = table.reshape(-1).view(np.uint8)
        start, end = _whole_pages(data)
        advise(start, end - start, RANDOM)

    def _without_table(self, location: str) -> list[NDArray[np.uint8]]:
        """A file's bytes, but for the whole pages of its table."""
        data, table = self._bytes[location], self._tables.get(location)
        if table is None:
            return [data]
        start, end = (address - data.ctypes.data for address in _whole_pages(table))
        return [data[:start], data[end:]]

    def _value(self, path: Path, tensor: onnx.TensorProto) -> ort.OrtValue:
        _, array = self.array(path, tensor)
        if tensor.data_type == onnx.TensorProto.BFLOAT16:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.data_type)
        return ort.OrtValue.ortvalue_from_numpy(array)

    def array(self, path: Path, tensor: onnx.TensorProto) -> tuple[str, NDArray[Any]]:
        """The location and the content of a tensor in a mapped file."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        data, offset = self._bytes.get(entries.get("location", "")), entries.get("offset", "0")
        dtype, dims = _DTYPES.get(tensor.data_type), list(tensor.dims)
        if data is None or dtype is None or len(dims) > _MAX_RANK:
            raise TrigraphError(
                f"{path}: tensor {quote(tensor.name)}, of type {tensor.data_type} and {len(dims)} dimensions in "
                f"{quote(entries.get('location'))}, is no weight; {_REMEDY}"
            )
        length = math.prod(dims) * dtype.itemsize
        start = int(offset) if offset.isdecimal() and len(offset) < 20 else -1
        # No dimension is 0: NumPy refuses sizes that the others could have then.
        if start < 0 or min(dims, default=1) < 1 or start % dtype.itemsize or start + length > len(data):
            raise TrigraphError(
                f"{path}: tensor {quote(tensor.name)}, {dims} at {quote(offset)}, is not inside its file "
                f"of {len(data)} bytes; {_REMEDY}"
            )
        return entries["location"], data[start : start + length].view(dtype).reshape(dims)


def table_bytes(graph: onnx.GraphProto) -> int:
    """Bytes of a graph's table of n-grams; 0 where it has none."""
    tables = (table for table in graph.initializer if table.name == NGRAM_TABLE and table.data_type in _DTYPES)
    return sum(math.prod(table.dims) * _DTYPES[table.data_type].itemsize for table in tables)


def _whole_pages(data: NDArray[np.uint8]) -> tuple[int, int]:
    """Addresses of the first and behind the last page that holds nothing else; equal where there is none."""
    start = -(-data.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    return start, max(start, (data.ctypes.data + len(data)) // mmap.PAGESIZE * mmap.PAGESIZE)


def _populate(files: list[NDArray[np.uint8]]) -> None:
    for data in files:
        for start in range(0, len(data), _STRETCH):
            if not advise(data.ctypes.data + start, min(_STRETCH, len(data) - start), POPULATE_READ):
                return  # an older kernel; the pages come when they are touched


def _stamp(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns
