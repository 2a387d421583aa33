"""An NVIDIA GPU: memory of its own, filled and read through the functions of the CUDA operator library."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import onnxruntime as ort

from trigraph.custom_ops import host_experts, library_path, read_rows
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.cuda.array import CudaArray
from trigraph.runtime.device.cuda.captures import GRAPHS, Captures, apart, run_options
from trigraph.runtime.device.cuda.checks import captured_at, check_driver, check_provider
from trigraph.runtime.device.cuda.exchange import CudaExchange, Staging
from trigraph.runtime.device.cuda.library import PROVIDER, CudaLibrary
from trigraph.runtime.device.cuda.sampler import CudaSampler
from trigraph.runtime.device.cuda.weight_source import CudaWeightSource
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.exchange import Exchange
from trigraph.runtime.device.mapped_weights import MappedWeights

_CAPTURED_AT = 32  # runs of a shape: to capture one takes as long as that many replays save, or longer


@dataclass(frozen=True, kw_only=True)
class CudaDevice(Device):
    """A GPU. State and results of steps never leave it unasked."""

    functions: CudaLibrary
    capture: int = 0
    """Which run of a shape is captured as a CUDA graph, if it is no large one; 0: none is."""

    name: ClassVar[str] = "cuda"
    operators: ClassVar[str] = "cuda"
    is_host: ClassVar[bool] = False
    chunk: ClassVar[int] = 1024
    most_pending: ClassVar[int] = 29  # as many as kernels hold in shared memory

    @property
    def label(self) -> str:
        return f"{self.name}:{self.functions.number}"

    def enter(self) -> None:
        self.functions.use()

    def session(self, model: bytes, options: ort.SessionOptions, graph: str) -> ort.InferenceSession:
        """Kernels and copies share one stream, so that nothing waits but the end of a step."""
        if self.provider != PROVIDER:
            return super().session(model, options, graph)
        options.enable_mem_pattern = False  # from a shape's second run on it takes as much again as the first one has
        settings = {
            "device_id": str(self.functions.number),
            "user_compute_stream": str(self.functions.stream),
            "arena_extend_strategy": "kSameAsRequested",
            "enable_cuda_graph": str(int(self.capture > 0 and graph in GRAPHS)),
        }
        providers = [(PROVIDER, settings), "CPUExecutionProvider"]
        with apart:
            return ort.InferenceSession(model, options, providers=providers, enable_fallback=0)

    def run_options(self) -> ort.RunOptions:
        return run_options() if self.provider == PROVIDER else super().run_options()

    def captures(self, graph: str, pending: Sequence[CudaArray]) -> Captures | None:
        return Captures(self.functions, self.capture, pending) if self.capture and graph in GRAPHS else None

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> CudaArray:
        return CudaArray(self.functions, shape, dtype)

    def part(self, memory: CudaArray, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> CudaArray:
        return CudaArray(self.functions, shape, dtype, memory, start)

    def bind(self, io: ort.IOBinding, inputs: Mapping[str, CudaArray], outputs: Mapping[str, CudaArray]) -> None:
        place = self.functions.memory_name, self.functions.number
        for bind, memories in ((io.bind_input, inputs), (io.bind_output, outputs)):
            for name, memory in memories.items():
                bind(name, *place, memory.dtype, memory.shape, memory.address)

    def copy_row(self, memory: CudaArray, source: int, target: int) -> None:
        self.functions.copy(memory.row(target), memory.row(source), memory.row_bytes)

    def exchanges(self) -> Callable[[Mapping[str, CudaArray], Mapping[str, CudaArray]], Exchange]:
        return partial(CudaExchange, self.functions, Staging(self.functions))

    def sampler(self, most: int, steps: int, vocab: int) -> CudaSampler:
        return CudaSampler(self.functions, most, steps, vocab)

    def while_waiting(self, work: Callable[[], object]) -> bool:
        self.functions.before_wait = work
        return True

    def others(self) -> Sequence[CudaDevice]:
        return [open_cuda(number) for number in self.functions.by_speed() if number != self.functions.number]

    def free_memory(self) -> int:
        return self.functions.free_memory()[0]

    def total_memory(self) -> int:
        return self.functions.free_memory()[1]

    def memory_rate(self) -> float:
        return self.functions.memory_rate(self.functions.number)

    def copy_rate(self) -> float:
        return self.functions.copy_rate()

    def weight_source(self, mapped: MappedWeights, threads: int) -> CudaWeightSource:
        return CudaWeightSource(self.functions, mapped, threads)


def open_cuda(number: int | None = None) -> CudaDevice:
    """A GPU, by its number among those that CUDA shows, for one engine; None: the one with the fastest memory.

    Raises TrigraphError that says what is missing, and what to do about it.
    """
    try:
        library = CudaLibrary(library_path("cuda"), number or 0)
    except TrigraphError:
        check_driver()  # without a driver, that comes first
        raise
    if library.provider == PROVIDER:
        check_driver()
        check_provider()
        if problem := library.problem():
            raise TrigraphError(f"no GPU can be used ({problem}); check the NVIDIA driver, or use device=cpu")
    if number is None:
        library.number = library.by_speed()[0]
    library.use_host_experts(host_experts())
    library.use_read_rows(read_rows())
    capture = captured_at(os.environ.get("TRIGRAPH_CUDA_GRAPHS", str(_CAPTURED_AT)))
    capture = capture if library.provider == PROVIDER else 0  # only ONNX Runtime's own provider captures
    return CudaDevice(library.path, "CUDA", provider=library.provider, functions=library, capture=capture)
