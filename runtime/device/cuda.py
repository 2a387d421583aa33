"""An NVIDIA GPU: memory of its own, filled and read through the functions of the CUDA operator library."""

from __future__ import annotations

import contextlib
import ctypes
import io as text_io
import os
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from trigraph.custom_ops import host_operator, library_path
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.cuda_library import HOST_DOMAIN, PROVIDER, CudaLibrary
from trigraph.runtime.device.device import Array, Device, Exchange
from trigraph.runtime.device.mapped_weights import MappedWeights

_EXPERTS = "GroupedExpertFFN"
_MOST_CAPTURED = 16  # tokens of a step that is captured
_ON_DEVICE = ("logits",)  # results that a greedy round never reads: rows of them are fetched when asked for


class CudaArray:
    """An array on the device. Rows are read and written through the host; what is read is a copy."""

    def __init__(
        self, library: CudaLibrary, shape: tuple[int, ...], dtype: np.dtype[Any], owner: CudaArray | None = None
    ) -> None:
        """Zeros, or with `owner` the first rows of its memory."""
        self._library = library
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._owner = owner
        if owner is None:
            self.address = library.allocate(self.nbytes)
            weakref.finalize(self, library.free, self.address, False)
        else:
            self.address = owner.address

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.start is None and index.step is None:
            return CudaArray(self._library, (index.stop, *self.shape[1:]), self.dtype, owner=self)
        if isinstance(index, int | np.integer):
            return self._read(self._row(int(index)), self.shape[1:])
        return self.copy()[index]

    def __setitem__(self, index: Any, value: Array) -> None:
        numbers = np.atleast_1d(index).tolist()
        rows = np.ascontiguousarray(np.broadcast_to(value, (len(numbers), *self.shape[1:])), self.dtype)
        for number, row in zip(numbers, rows, strict=True):
            self._library.copy(self._row(number), row.ctypes.data, self.row_bytes)
        self._library.wait()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.copy().astype(dtype or self.dtype, copy=False)

    def copy(self) -> Array:
        """All of it, in the host's memory."""
        return self._read(self.address, self.shape)

    def astype(self, dtype: Any) -> Array:
        """All of it as another type, in the host's memory."""
        return self.copy().astype(dtype)

    def copy_row(self, source: int, target: int) -> None:
        """self[target] = self[source], on the device."""
        self._library.copy(self._row(target), self._row(source), self.row_bytes)

    def _row(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.address + index * self.row_bytes

    def _read(self, address: int, shape: tuple[int, ...]) -> Array:
        array = np.empty(shape, self.dtype)
        self._library.copy(array.ctypes.data, address, array.nbytes)
        self._library.wait()
        return array


class PinnedArray:
    """Host memory that copies need no staging for."""

    def __init__(self, library: CudaLibrary, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        address = library.allocate(nbytes, pinned=True)
        memory = (ctypes.c_byte * nbytes).from_address(address)
        weakref.finalize(memory, library.free, address, True)
        self.array: NDArray[Any] = np.frombuffer(memoryview(memory), dtype).reshape(shape)


@dataclass(frozen=True)
class CudaExchange(Exchange):
    """Copies what a step takes to the device, and small results back; large ones stay until somebody reads a row."""

    library: CudaLibrary
    sent: tuple[tuple[CudaArray, Array], ...]
    received: tuple[tuple[CudaArray, Array], ...]

    def send(self) -> None:
        """See Exchange."""
        for memory, array in self.sent:
            self.library.copy(memory.address, array.ctypes.data, array.nbytes)

    def receive(self) -> None:
        """See Exchange."""
        for memory, array in self.received:
            self.library.copy(array.ctypes.data, memory.address, array.nbytes)
        self.library.wait()


@dataclass(frozen=True, kw_only=True)
class CudaDevice(Device):
    """A GPU. Weights lie on it once, whatever graphs read them; state and results of steps never leave it unasked."""

    functions: CudaLibrary
    weights: dict[tuple[int, str], ort.OrtValue] = field(default_factory=dict)
    """By address and shape in the mapped files."""
    experts: str = "gpu"
    """Where routed experts are computed: gpu, or cpu, from the mapped file."""
    capture: bool = False
    """Whether verifies run as CUDA graphs, captured once for each shape."""

    @property
    def name(self) -> str:
        """See Device."""
        return "cuda"

    @property
    def provider(self) -> str:
        """See Device."""
        return self.functions.provider

    @property
    def reads_mapped_weights(self) -> bool:
        """See Device."""
        return self.experts == "cpu"

    @property
    def lazy_memory(self) -> bool:
        """See Device."""
        return False

    def providers(self, graph: str) -> list[Any]:
        """See Device: kernels and copies share one stream, so that nothing waits but the end of a step."""
        if self.provider != PROVIDER:
            return [self.provider]
        options = {"user_compute_stream": str(self.functions.stream), "arena_extend_strategy": "kSameAsRequested"}
        if self._captures(graph):
            options["enable_cuda_graph"] = "1"
        return [(PROVIDER, options), "CPUExecutionProvider"]

    def run_options(self, graph: str, tokens: int, number: int) -> ort.RunOptions | None:
        """See Device: a captured graph for each shape of a step that is not large."""
        if not self._captures(graph):
            return None
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(number) if tokens <= _MOST_CAPTURED else "-1")
        return options

    def _captures(self, graph: str) -> bool:
        """Prefills have too many shapes, and drafts some nodes on the CPU, which cannot be captured."""
        return self.capture and graph == "verify"

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> CudaArray:
        """See Device."""
        return CudaArray(self.functions, shape, dtype)

    def bind_input(self, io: ort.IOBinding, name: str, memory: CudaArray) -> None:
        """See Device."""
        io.bind_input(name, self.functions.memory_name, 0, memory.dtype, memory.shape, memory.address)

    def bind_output(self, io: ort.IOBinding, name: str, memory: CudaArray) -> None:
        """See Device."""
        io.bind_output(name, self.functions.memory_name, 0, memory.dtype, memory.shape, memory.address)

    def copy_row(self, memory: CudaArray, source: int, target: int) -> None:
        """See Device."""
        memory.copy_row(source, target)

    def copy_rate(self) -> float:
        """See Device."""
        return self.functions.copy_rate()

    def exchange(self, inputs: Mapping[str, CudaArray], outputs: Mapping[str, CudaArray]) -> Exchange:
        """See Device."""
        pinned = {
            memory: PinnedArray(self.functions, memory.shape, memory.dtype).array
            for name, memory in (*inputs.items(), *outputs.items())
            if name not in _ON_DEVICE
        }
        return CudaExchange(
            {name: pinned[memory] for name, memory in inputs.items()},
            {name: pinned.get(memory, memory) for name, memory in outputs.items()},
            self.functions,
            tuple((memory, pinned[memory]) for memory in inputs.values()),
            tuple((memory, pinned[memory]) for memory in outputs.values() if memory in pinned),
        )

    def adapt(self, model: onnx.ModelProto) -> bool:
        """See Device: routed experts become nodes of the CPU; ONNX Runtime copies their rows there and back."""
        nodes = [node for node in model.graph.node if node.op_type == _EXPERTS and self.experts == "cpu"]
        for node in nodes:
            node.domain = HOST_DOMAIN
        if nodes:
            model.opset_import.add(domain=HOST_DOMAIN, version=1)
        return bool(nodes)

    def initializers(self, weights: MappedWeights, path: Path, graph: onnx.GraphProto) -> dict[str, ort.OrtValue]:
        """See Device."""
        mapped = {name for node in graph.node if node.domain == HOST_DOMAIN for name in node.input}
        return {
            name: value if name in mapped else self._on_device(value)
            for name, value in weights.initializers(path, graph).items()
        }

    def _on_device(self, mapped: ort.OrtValue) -> ort.OrtValue:
        """One copy of a weight for all graphs: the same address in the mapped file is the same weight."""
        if self.provider != PROVIDER:
            return mapped
        key = (mapped.data_ptr(), str(mapped.shape()))
        if key not in self.weights:
            target = ort.OrtValue.ortvalue_from_shape_and_type(mapped.shape(), mapped.element_type(), "cuda", 0)
            self.functions.copy(target.data_ptr(), mapped.data_ptr(), mapped.tensor_size_in_bytes())
            # ONNX Runtime shares only values that do not own their memory, as one made by way of DLPack.
            self.weights[key] = ort.OrtValue.from_dlpack(target.__dlpack__())
        return self.weights[key]


@cache
def open_cuda(experts: str = "gpu") -> CudaDevice:
    """The first GPU. Raises TrigraphError that says what is missing, and what to do about it."""
    try:
        library = CudaLibrary(library_path("cuda"))
    except TrigraphError:
        _check_driver()  # without a driver, that comes first
        raise
    if library.provider == PROVIDER:
        _check_driver()
        _check_provider()
        if problem := library.problem():
            raise TrigraphError(f"no GPU can be used ({problem}); check the NVIDIA driver, or use --device cpu")
    if experts == "cpu":
        library.add_host_operator(host_operator(_EXPERTS))
    # A session with nodes on the CPU cannot be captured.
    capture = experts == "gpu" and os.environ.get("TRIGRAPH_CUDA_GRAPHS") == "1"
    return CudaDevice(library.path, "CUDA", functions=library, experts=experts, capture=capture)


def _check_driver() -> None:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        raise TrigraphError(
            f"no NVIDIA driver is installed ({name} is missing); install it, or use --device cpu"
        ) from None


def _check_provider() -> None:
    remedy = "pip install 'onnxruntime-gpu[cuda,cudnn]', or use --device cpu"
    if PROVIDER not in ort.get_available_providers():
        raise TrigraphError(f"this ONNX Runtime has no CUDA provider: pip uninstall onnxruntime, then {remedy}")
    with contextlib.redirect_stdout(text_io.StringIO()):  # it prints what it does not find
        ort.preload_dlls()
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "probe", [value], [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[PROVIDER], enable_fallback=0)
        found = session.get_providers()
    except Exception as error:  # ONNX Runtime's exceptions share no base class of their own
        raise TrigraphError(f"ONNX Runtime's CUDA provider does not load ({error}); {remedy}") from error
    if PROVIDER not in found:
        raise TrigraphError(f"ONNX Runtime's CUDA provider does not load: libraries of CUDA are missing; {remedy}")
