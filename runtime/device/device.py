"""Where graphs run: the processor, with NumPy arrays as their memory, or a device that a subclass describes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress, silent
from trigraph.runtime.device.exchange import Array, Exchange, Memory
from trigraph.runtime.device.heap import populate
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.sampler import DeviceSampler

_ALIGNMENT = 64


@dataclass(frozen=True)
class Device:
    """A processor: graphs read and write the memory of NumPy arrays."""

    library: Path | None
    """The operator library; None where portable graphs run without."""
    kernels: str
    """What the kernels are for, as the user is told: an instruction set, a GPU, "no" without a library."""
    reason: str | None = None
    """Why no GPU was taken, when the choice was left to the program."""

    @property
    def name(self) -> str:
        """What it is called in DEVICES, and in the name of its operator library."""
        return "cpu"

    @property
    def description(self) -> str:
        """What runs the graphs, in a line."""
        line = f"{self.name}: {self.kernels} kernels, ONNX Runtime's {self.provider}"
        return line if self.reason is None else f"{line} ({self.reason})"

    @property
    def provider(self) -> str:
        """The execution provider that the operators are for."""
        return "CPUExecutionProvider"

    @property
    def reads_mapped_weights(self) -> bool:
        """Whether steps read weights in the mapped files, and not in copies of the device's own."""
        return True

    @property
    def lazy_memory(self) -> bool:
        """Whether memory is taken when it is first used."""
        return True

    @property
    def runs_side_by_side(self) -> bool:
        """Whether a thread may run a graph while another one runs a step."""
        return True

    @property
    def chunk(self) -> int:
        """Tokens of a prompt in one step: more gain little."""
        return 512

    @property
    def most_pending(self) -> int:
        """Most tokens of a sequence that its kernels verify in one step."""
        return 256

    def enter(self) -> None:
        """Prepares the calling thread for what it does with the device, by way of ONNX Runtime too."""

    def providers(self, graph: str) -> list[Any]:
        """The execution providers of a session of the prefill, draft or verify graph, with their options."""
        return [self.provider]

    def captures(self, graph: str, tokens: int, sequences: int) -> int:
        """Which of a thread's runs of such a step records what later ones replay, counted from 1; 0: none."""
        return 0

    def run_options(self, graph: str, number: int | None = None) -> ort.RunOptions | None:
        """How to run a graph; with `number`, its own among the graph's bindings, to record that one or replay it."""
        return None

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        """Memory that is touched when it is first used."""
        return aligned_zeros(shape, dtype)

    def part(self, memory: Memory, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        """An array in `memory`, which is of bytes, from byte `start` on."""
        piece: Array = memory[start : start + math.prod(shape) * dtype.itemsize]
        return piece.view(dtype).reshape(shape)

    def bind_input(self, io: ort.IOBinding, name: str, memory: Memory) -> None:
        """Lets a session read `memory` as an input."""
        io.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(memory))

    def bind_output(self, io: ort.IOBinding, name: str, memory: Memory) -> None:
        """Lets a session write an output to `memory`."""
        io.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(memory))

    def copy_row(self, memory: Memory, source: int, target: int) -> None:
        """memory[target] = memory[source], where the memory is."""
        memory[target] = memory[source]

    def populate_row(self, memory: Memory, row: int) -> None:
        """Takes the memory of memory[row], where that would be done at its first use."""
        if self.lazy_memory:
            populate(memory[row])

    def opening(self) -> AbstractContextManager[object]:
        """While a session is opened."""
        return nullcontext()

    def capturing(self) -> AbstractContextManager[bool]:
        """While a step is captured; whether it may be just now."""
        return nullcontext(True)

    def kept(self, memories: Sequence[Memory], rows: Sequence[int]) -> AbstractContextManager[None]:
        """While a step is captured: whatever the block does to these rows, they are afterwards as they were before."""
        return nullcontext()

    def cleared(self, memories: Sequence[Memory]) -> AbstractContextManager[None]:
        """While a step is captured: these hold zeros, and afterwards what they held before."""
        return nullcontext()

    def copy_rate(self) -> float | None:
        """Bytes a second that a copy within memory of the device's own reads and writes; None where it has none."""
        return None

    def staging(self) -> Any:
        """What all exchanges of a graph share."""
        return None

    def exchange(self, staging: Any, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> Exchange:
        """The host's side of a step on this memory."""
        return Exchange(inputs, outputs)

    def sampler(self, most: int, steps: int, vocab: int) -> DeviceSampler | None:
        """A sampler of at most `most` tokens a round, after at most `steps` steps; None where the host samples."""
        return None

    def place(
        self,
        models: Callable[[], Mapping[str, onnx.ModelProto]],
        state: Mapping[str, int],
        budget: int | None,
        threads: int,
        counts: Path,
    ) -> Sequence[str]:
        """Decides which weights of the graphs lie here, before any is adapted; what the user should know of that.

        `state`: bytes of the state tensors by name. `budget`: bytes that weights and state may take; None for what is
        free. `counts`: the file that says from one start to the next how often experts were chosen. Raises
        TrigraphError for a budget that is too small.
        """
        return ()

    @property
    def host_layers(self) -> int:
        """Of the trunk's layers, how many the CPU computes in this device's place, the first ones."""
        return 0

    def fetch(self, array: Array, sources: Sequence[int]) -> None:
        """Fills rows of the host's array from their addresses on the device; 0 leaves a row."""

    def while_waiting(self, work: Callable[[], object]) -> bool:
        """Has `work` done ahead of each wait for the end of a step; False where the host computes steps itself."""
        return False

    def before_step(self, graph: str) -> None:
        """What is to be done on the device between steps, ahead of one of the prefill, draft or verify graph."""

    def shortage(self, error: Exception) -> TrigraphError | None:
        """What an error of a step means, where it is a want of the device's own memory: a RetryError if there is more
        now."""
        return None

    def adapt(self, model: onnx.ModelProto) -> bool:
        """Changes a graph to what this device runs; whether anything was changed."""
        return False

    def initializers(
        self, weights: MappedWeights, path: Path, graph: onnx.GraphProto, progress: Progress = silent
    ) -> dict[str, ort.OrtValue]:
        """The weights of the graph in file `path`, shared by all graphs of a package.

        `progress` is told of weights that are copied to the device.
        """
        return weights.initializers(path, graph)


HOST = Device(None, "no")
"""The host's memory, for those who run no sessions."""


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros whose first byte lies on a cache line: rows that straddle two lines cost vector loads twice."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)
