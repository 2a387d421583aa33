"""Arrays in a GPU's memory."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.exchange import Array


class CudaArray:
    """An array on the device. Rows are read and written through the host; what is read is a copy."""

    def __init__(
        self,
        library: CudaLibrary,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        owner: CudaArray | None = None,
        start: int = 0,
    ) -> None:
        """Zeros, or with `owner` a part of its memory from byte `start` on."""
        self._library = library
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.row_bytes = math.prod(shape[1:]) * self.dtype.itemsize
        """Bytes of one row."""
        self.nbytes = shape[0] * self.row_bytes
        """Bytes of all elements."""
        self._owner = owner
        if owner is None:
            self.address = library.allocate(self.nbytes)
            weakref.finalize(self, library.free, self.address, False)
        else:
            self.address = owner.address + start

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.start is None and index.step is None:
            return CudaArray(self._library, (index.stop, *self.shape[1:]), self.dtype, owner=self)
        if isinstance(index, int | np.integer):
            return self._read(self.row(int(index)), self.shape[1:])
        return self.copy()[index]

    def __setitem__(self, index: Any, value: Array) -> None:
        numbers = np.atleast_1d(index).tolist()
        rows = np.ascontiguousarray(np.broadcast_to(value, (len(numbers), *self.shape[1:])), self.dtype)
        for number, row in zip(numbers, rows, strict=True):
            self._library.copy(self.row(number), row.ctypes.data, self.row_bytes)
        self._library.wait()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.copy().astype(dtype or self.dtype, copy=False)

    def copy(self) -> Array:
        """All of it, in the host's memory."""
        return self._read(self.address, self.shape)

    def astype(self, dtype: Any) -> Array:
        """All of it as another type, in the host's memory."""
        return self.copy().astype(dtype)

    def row(self, index: int) -> int:
        """The address of a row."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.address + index * self.row_bytes

    def _read(self, address: int, shape: tuple[int, ...]) -> Array:
        array = np.empty(shape, self.dtype)
        self._library.copy(array.ctypes.data, address, array.nbytes)
        self._library.wait()
        return array
