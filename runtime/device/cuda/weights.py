"""Weights on a GPU: one copy for all graphs, in memory of its own and no more than they need."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import onnxruntime as ort

from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.device.device_memory import pinned_array
from trigraph.runtime.device.heap import release

_ALIGNMENT = 256  # of cudaMalloc
_PIECE = 32 << 20  # bytes that are read from a file while others are copied to the device
_DLPACK_CUDA = 2  # kDLCUDA
_DLPACK_TYPES = {  # code and bits of an element
    onnx.TensorProto.UINT8: (1, 8),
    onnx.TensorProto.INT32: (0, 32),
    onnx.TensorProto.FLOAT: (2, 32),
    onnx.TensorProto.FLOAT16: (2, 16),
    onnx.TensorProto.BFLOAT16: (4, 16),
}


class _Tensor(ctypes.Structure):
    """DLPack's DLManagedTensor of a contiguous tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class CudaWeights:
    """The weights of one MappedWeights on the device, for as long as that lives.

    ONNX Runtime's own allocator would take the next power of two of what is asked for.
    """

    def __init__(self, library: CudaLibrary) -> None:
        self._library = library
        self._values: dict[tuple[int, str], ort.OrtValue] = {}  # by address and shape in the mapped files
        self._pieces: dict[int, weakref.finalize[[int, bool], CudaWeights]] = {}  # by address

    def on_device(self, mapped: Mapping[str, ort.OrtValue], copied: Callable[[int], object]) -> dict[str, ort.OrtValue]:
        """The mapped weights, on the device. Those that no graph has asked for before are copied, into one piece.

        `copied` is told the bytes of each bit of it.
        """
        keys = {name: (value.data_ptr(), str(value.shape())) for name, value in mapped.items()}
        missing = {key: mapped[name] for name, key in keys.items() if key not in self._values}
        places, size = [], 0
        for value in missing.values():
            places.append(size)
            size += -(-value.tensor_size_in_bytes() // _ALIGNMENT) * _ALIGNMENT
        if missing:
            start = self._library.allocate(size)
            self._pieces[start] = weakref.finalize(self, self._library.free, start, False)
            upload = _Upload(self._library)
            for (key, value), place in zip(missing.items(), places, strict=True):
                for size in upload.copy(start + place, value.data_ptr(), value.tensor_size_in_bytes()):
                    copied(size)
                self._values[key] = self.at(start + place, value)
            self._library.wait()
        return {name: self._values[key] for name, key in keys.items()}

    def at(self, address: int, like: ort.OrtValue) -> ort.OrtValue:
        """A value on the device, in memory that it does not own."""
        return value_at(address, self._library.number, like)

    def release(self, address: int) -> None:
        """Gives the piece of memory at an address back, which nothing reads any more."""
        self._pieces.pop(address)()


class _Upload:
    """Copies mapped memory to the device by way of two pinned pieces: one is filled, which reads the file, while the
    other one is copied."""

    def __init__(self, library: CudaLibrary) -> None:
        self._library = library
        self._pieces = [pinned_array(library, (_PIECE,), np.dtype(np.uint8)) for _ in range(2)]
        self._events = [library.make_event() for _ in self._pieces]
        for event in self._events:
            weakref.finalize(self, library.free_event, event)
        self._count = 0

    def copy(self, target: int, source: int, nbytes: int) -> Iterator[int]:
        """Enqueues the copy of mapped memory; gives the bytes of each piece when it is filled."""
        for start in range(0, nbytes, _PIECE):
            size, turn = min(_PIECE, nbytes - start), self._count % 2
            if self._count >= 2:
                self._library.wait_for_event(self._events[turn])
            piece = self._pieces[turn].ctypes.data
            ctypes.memmove(piece, source + start, size)
            self._library.copy(target + start, piece, size)
            self._library.record_event(self._events[turn])
            self._count += 1
            release(source + start, size)
            yield size


def value_at(address: int, device: int, like: ort.OrtValue) -> ort.OrtValue:
    """A value on the device in memory that it does not own: ONNX Runtime lets sessions share no other ones."""
    shape = like.shape()
    libc = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    size = ctypes.sizeof(_Tensor)
    memory = libc.malloc(size + 8 * len(shape))  # the reader gives it back, by the deleter
    (ctypes.c_int64 * len(shape)).from_address(memory + size)[:] = shape
    tensor = _Tensor.from_address(memory)
    tensor.data, tensor.device_type, tensor.device_id = address, _DLPACK_CUDA, device
    tensor.type_code, tensor.type_bits = _DLPACK_TYPES[like.element_type()]
    tensor.rank, tensor.lanes, tensor.shape = len(shape), 1, memory + size
    tensor.strides = tensor.context = None
    tensor.byte_offset, tensor.deleter = 0, ctypes.cast(libc.free, ctypes.c_void_p).value
    make_capsule = ctypes.pythonapi.PyCapsule_New
    make_capsule.restype, make_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return ort.OrtValue.from_dlpack(make_capsule(memory, b"dltensor", None))
