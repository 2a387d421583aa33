"""Where graphs run: the processor, with NumPy arrays as their memory, or a device that a subclass describes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime as ort

from trigraph.runtime.device.exchange import Array, Captures, Exchange, Memory
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.memory import free_memory
from trigraph.runtime.device.sampler import DeviceSampler
from trigraph.runtime.device.weight_source import WeightSource

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
    provider: str = "CPUExecutionProvider"
    """The execution provider that the operators are for."""

    name: ClassVar[str] = "cpu"
    """What it is called in DEVICES."""
    operators: ClassVar[str] = "cpu"
    """What its operator library is called in the name of the file."""
    is_host: ClassVar[bool] = True
    """Whether memory is the host's, taken when it is first used, and threads run graphs side by side."""
    chunk: ClassVar[int] = 512
    """Tokens of a prompt in one step: more gain little."""
    most_pending: ClassVar[int] = 256
    """Most tokens of a sequence that its kernels verify in one step."""

    @property
    def arithmetic(self) -> str:
        """Whose arithmetic computes rows where it is not our operators', to the bit; else empty."""
        return ""

    @property
    def label(self) -> str:
        """Its name, with the number of a GPU."""
        return self.name

    @property
    def description(self) -> str:
        """What runs the graphs, in a line."""
        line = f"{self.label}: {self.kernels} kernels, ONNX Runtime's {self.provider}"
        return line if self.reason is None else f"{line} ({self.reason})"

    def enter(self) -> None:
        """Prepares the calling thread for what it does with the device, by way of ONNX Runtime too."""

    def session(self, model: bytes, options: ort.SessionOptions, graph: str) -> ort.InferenceSession:
        """A session for `model`, which is the prefill, draft, verify or vision graph."""
        return ort.InferenceSession(model, options, providers=[self.provider], enable_fallback=0)

    def run_options(self) -> ort.RunOptions:
        """How a graph is run; on a GPU, nobody waits for its end."""
        return ort.RunOptions()

    def captures(self, graph: str, pending: Sequence[Memory]) -> Captures | None:
        """What records steps of a graph's session and replays them; None where each is run node by node.

        `pending`: the state that waits for the tokens of a verify to be accepted.
        """
        return None

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        """Memory that is touched when it is first used."""
        return aligned_zeros(shape, dtype)

    def part(self, memory: Memory, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        """An array in `memory`, which is of bytes, from byte `start` on."""
        piece: Array = memory[start : start + math.prod(shape) * dtype.itemsize]
        return piece.view(dtype).reshape(shape)

    def bind(self, io: ort.IOBinding, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> None:
        """Lets a session read and write memory as its inputs and outputs of these names."""
        for name, memory in inputs.items():
            io.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(memory))
        for name, memory in outputs.items():
            io.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(memory))

    def copy_row(self, memory: Memory, source: int, target: int) -> None:
        """memory[target] = memory[source], where the memory is."""
        memory[target] = memory[source]

    def exchanges(self) -> Callable[[Mapping[str, Memory], Mapping[str, Memory]], Exchange]:
        """What makes the host's side of each of a graph's steps, from the memory of their inputs and outputs."""
        return Exchange

    def sampler(self, most: int, steps: int, vocab: int) -> DeviceSampler | None:
        """A sampler of at most `most` tokens a round, after at most `steps` steps; None where the host samples."""
        return None

    def while_waiting(self, work: Callable[[], object]) -> bool:
        """Has `work` done ahead of each wait for the end of a step; False where the host computes steps itself."""
        return False

    def others(self) -> Sequence[Device]:
        """Further ones of its kind on this machine, those with the fastest memory first."""
        return ()

    def free_memory(self) -> int | None:
        """Bytes that weights and state may take, where they lie; None if unknown."""
        return free_memory()

    def total_memory(self) -> int | None:
        """All bytes of a memory of its own; None where it has none."""
        return None

    def memory_rate(self) -> float:
        """Bytes a second of its memory as its data sheet has them, to compare it with others; 0 where it has none."""
        return 0

    def copy_rate(self) -> float | None:
        """Bytes a second that a copy within memory of the device's own reads and writes; None where it has none."""
        return None

    def weight_source(self, mapped: MappedWeights, threads: int) -> WeightSource:
        """Where graphs read the weights of these files; beside a device, the CPU computes on `threads` threads."""
        return WeightSource(mapped)


HOST = Device(None, "no")
"""The host's memory, for those who run no sessions."""


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros whose first byte lies on a cache line: rows that straddle two lines cost vector loads twice."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)
