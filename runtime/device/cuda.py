"""An NVIDIA GPU: memory of its own, filled and read through the functions of the CUDA operator library."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx
import onnxruntime as ort

from trigraph.custom_ops import host_experts, library_path, read_rows
from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.device.cuda_array import CudaArray
from trigraph.runtime.device.cuda_captures import cleared, kept
from trigraph.runtime.device.cuda_checks import captured_at, check_driver, check_provider
from trigraph.runtime.device.cuda_exchange import CudaExchange, Staging, spans
from trigraph.runtime.device.cuda_experts import pieces, split, weights_of
from trigraph.runtime.device.cuda_fusion import fuse
from trigraph.runtime.device.cuda_library import PROVIDER, CudaLibrary
from trigraph.runtime.device.cuda_sampler import CudaSampler
from trigraph.runtime.device.cuda_sharing import Sharing, placed, shared_tables, shortage
from trigraph.runtime.device.cuda_tables import host_tables, keep_tables
from trigraph.runtime.device.cuda_weights import CudaWeights
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.exchange import Array, Exchange
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.moving_experts import MovingExperts

_MOST_CAPTURED = 64  # tokens of a step that is captured
_CAPTURED_AT = 8  # runs of a shape: to capture one takes as long as some thirty replays save

_apart = threading.Lock()
"""Held while a session is opened, or a step captured."""


@dataclass(frozen=True, kw_only=True)
class CudaDevice(Device):
    """A GPU. Weights lie on it once, whatever graphs read them; state and results of steps never leave it unasked."""

    functions: CudaLibrary
    weights: WeakKeyDictionary[MappedWeights, CudaWeights] = field(default_factory=WeakKeyDictionary)
    """Of each model that is loaded."""
    experts: str = "gpu"
    """Where routed experts are computed: gpu, those that fit into its memory, or cpu, from the mapped file."""
    sharing: Sharing = field(default_factory=Sharing)
    """With the CPU."""
    capture: int = 0
    """Which run of a shape of several sequences is captured as a CUDA graph, if it is no large one; 0: none is."""

    @property
    def name(self) -> str:
        """What it is called in DEVICES, and in the name of its operator library."""
        return "cuda"

    @property
    def provider(self) -> str:
        """The execution provider that the operators are for."""
        return self.functions.provider

    @property
    def reads_mapped_weights(self) -> bool:
        """Whether steps read weights in the mapped files, and not in copies of the device's own."""
        return self.sharing.placement is not None

    @property
    def lazy_memory(self) -> bool:
        """Whether memory is taken when it is first used."""
        return False

    @property
    def runs_side_by_side(self) -> bool:
        """Whether a thread may run a graph while another one runs a step: all share a stream here."""
        return False

    @property
    def chunk(self) -> int:
        """Tokens of a prompt in one step: more gain little."""
        return 1024

    @property
    def most_pending(self) -> int:
        """Most tokens of a sequence that its kernels verify in one step: as many as they hold in shared memory."""
        return 29

    def enter(self) -> None:
        """Prepares the calling thread for what it does with the GPU, by way of ONNX Runtime too."""
        self.functions.use()

    def providers(self, graph: str) -> list[Any]:
        """The execution providers of a session of the prefill, draft or verify graph, with their options.

        Kernels and copies share one stream, so that nothing waits but the end of a step.
        """
        if self.provider != PROVIDER:
            return [self.provider]
        options = {
            "device_id": str(self.functions.number),
            "user_compute_stream": str(self.functions.stream),
            "arena_extend_strategy": "kSameAsRequested",
        }
        if self._may_capture(graph):
            options["enable_cuda_graph"] = "1"
        return [(PROVIDER, options), "CPUExecutionProvider"]

    def run_options(self, graph: str, number: int | None = None) -> ort.RunOptions | None:
        """How to run a graph; with `number`, its own among the graph's bindings, to record that one or replay it.

        Nobody waits for its end but us.
        """
        if self.provider != PROVIDER:
            return None
        options = ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if self._may_capture(graph):
            options.add_run_config_entry("gpu_graph_id", "-1" if number is None else str(number))
        return options

    def captures(self, graph: str, tokens: int, sequences: int) -> int:
        """Which of a thread's runs of such a step records what later ones replay, counted from 1; 0: none.

        Prefills and images have too many shapes. One sequence has few, several sequences have many, seldom used.
        """
        if not self._may_capture(graph) or tokens > _MOST_CAPTURED:
            return 0
        return 1 if sequences == 1 else self.capture

    def _may_capture(self, graph: str) -> bool:
        return self.capture > 0 and graph not in ("prefill", "vision")

    def opening(self) -> AbstractContextManager[object]:
        """While a session is opened: ONNX Runtime waits for all streams of the GPU, which CUDA forbids in captures."""
        return _apart

    @contextlib.contextmanager
    def capturing(self) -> Iterator[bool]:
        """While a step is captured; whether it may be just now, or a session is opened."""
        may = _apart.acquire(blocking=False)
        try:
            yield may
        finally:
            if may:
                _apart.release()

    def kept(self, memories: Sequence[CudaArray], rows: Sequence[int]) -> AbstractContextManager[None]:
        """While a step is captured: whatever the block does to these rows, they are afterwards as they were before."""
        return kept(self.functions, memories, rows)

    def cleared(self, memories: Sequence[CudaArray]) -> AbstractContextManager[None]:
        """While a step is captured: these hold zeros, and afterwards what they held before."""
        return cleared(self.functions, memories)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> CudaArray:
        """Memory that is touched when it is first used."""
        return CudaArray(self.functions, shape, dtype)

    def part(self, memory: CudaArray, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> CudaArray:
        """An array in `memory`, which is of bytes, from byte `start` on."""
        return memory.part(start, shape, dtype)

    def bind_input(self, io: ort.IOBinding, name: str, memory: CudaArray) -> None:
        """Lets a session read `memory` as an input."""
        library = self.functions
        io.bind_input(name, library.memory_name, library.number, memory.dtype, memory.shape, memory.address)

    def bind_output(self, io: ort.IOBinding, name: str, memory: CudaArray) -> None:
        """Lets a session write an output to `memory`."""
        library = self.functions
        io.bind_output(name, library.memory_name, library.number, memory.dtype, memory.shape, memory.address)

    def copy_row(self, memory: CudaArray, source: int, target: int) -> None:
        """memory[target] = memory[source], where the memory is."""
        memory.copy_row(source, target)

    def copy_rate(self) -> float:
        """Bytes a second that a copy within memory of the device's own reads and writes; None where it has none."""
        return self.functions.copy_rate()

    def staging(self) -> Staging:
        """What all exchanges of a graph share."""
        return Staging(self.functions)

    def exchange(self, staging: Staging, inputs: Mapping[str, CudaArray], outputs: Mapping[str, CudaArray]) -> Exchange:
        """The host's side of a step on this memory."""
        return CudaExchange(self.functions, staging, inputs, outputs)

    def sampler(self, most: int, steps: int, vocab: int) -> CudaSampler | None:
        """A sampler of at most `most` tokens a round, after at most `steps` steps; None where the host samples."""
        return CudaSampler(self.functions, most, steps, vocab)

    def place(
        self,
        models: Callable[[], Mapping[str, onnx.ModelProto]],
        state: Mapping[str, int],
        budget: int | None,
        threads: int,
        counts: Path,
    ) -> Sequence[str]:
        """Decides which weights and state lie here; what the user should know of that.

        `budget`: bytes that these may take; None for what is free.
        """
        self.sharing.use_threads(threads)
        weights, state_bytes = weights_of(models(), state), sum(state.values())
        placement = placed(self.functions, weights, state_bytes, budget, all_on_host=self.experts == "cpu")
        if not placement.is_split and not placement.host_layers:
            return ()
        moves = placement.is_split and self.provider == PROVIDER
        moving = MovingExperts(self.functions, placement, counts) if moves else None
        self.sharing.begin(placement, moving)
        return [placement.sentence()]

    @property
    def host_layers(self) -> int:
        """Of the trunk's layers, how many the CPU computes as a whole, the first ones."""
        return self.sharing.placement.host_layers if self.sharing.placement else 0

    def fetch(self, array: Array, sources: Sequence[int]) -> None:
        """Fills rows of the host's array from their addresses on the GPU, once it has made them; 0 leaves a row."""
        for row, source, count in spans(sources, array.nbytes // len(array)):
            self.functions.copy(array[row:].ctypes.data, source, array[row : row + count].nbytes)
        if any(sources):
            self.functions.wait()

    def while_waiting(self, work: Callable[[], object]) -> bool:
        """Has `work` done ahead of each wait for the end of a step, while the GPU computes."""
        self.functions.before_wait = work
        return True

    def before_step(self, graph: str) -> None:
        """Moves experts ahead of a verify."""
        if self.sharing.moving and graph == "verify":
            self.enter()
            self.sharing.moving.before_step()

    def shortage(self, error: Exception) -> TrigraphError | None:
        """What an error of a step means, where it is a want of the device's own memory: a RetryError if there is more
        now."""
        return shortage(error, self.sharing.moving)

    def adapt(self, model: onnx.ModelProto) -> bool:
        """Changes a graph to what this device runs; whether anything was changed.

        Nodes are fused. The CPU computes the routed experts that lie there, and reads rows of a table of n-grams.
        """
        if self.sharing.placement:
            split(model, self.sharing.placement, self.sharing.threads, self.sharing.places)
        keep_tables(model, self.sharing.threads)
        fuse(model)
        return True

    def initializers(
        self, weights: MappedWeights, path: Path, graph: onnx.GraphProto, progress: Progress = silent
    ) -> dict[str, ort.OrtValue]:
        """The weights of the graph in file `path`, shared by all graphs of a package."""
        values = weights.initializers(path, graph)
        if self.provider != PROVIDER:
            return values
        copies = self.weights.setdefault(weights, CudaWeights(self.functions))
        found: dict[str, ort.OrtValue] = {}
        for names in pieces(graph, values, host_tables(graph)):
            found |= copies.on_device({name: values[name] for name in names}, weights.resident_bytes, progress)
        if self.sharing.moving:
            found |= shared_tables(self.sharing.moving, copies, graph, values, found)
        return values | found


def open_cuda(experts: str = "gpu", number: int = 0) -> CudaDevice:
    """A GPU, by its number among those that CUDA shows, for one engine.

    Raises TrigraphError that says what is missing, and what to do about it.
    """
    try:
        library = CudaLibrary(library_path("cuda"), number)
    except TrigraphError:
        check_driver()  # without a driver, that comes first
        raise
    if library.provider == PROVIDER:
        check_driver()
        check_provider()
        if problem := library.problem():
            raise TrigraphError(f"no GPU can be used ({problem}); check the NVIDIA driver, or use --device cpu")
    library.use_host_experts(host_experts())
    library.use_read_rows(read_rows())
    capture = captured_at(os.environ.get("TRIGRAPH_CUDA_GRAPHS", str(_CAPTURED_AT)))
    capture = capture if library.provider == PROVIDER else 0  # only ONNX Runtime's own provider captures
    return CudaDevice(library.path, "CUDA", functions=library, experts=experts, capture=capture)
