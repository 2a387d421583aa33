"""The graphs of a package as ONNX Runtime sessions, with bindings that stay fixed.

A step fills small arrays and runs: nothing is allocated or bound for a number of tokens and sequences seen before.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort

from trigraph.models.errors import TrigraphError, check_name
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.exchange import Array, BoundStep, Exchange, Memory
from trigraph.runtime.device.memory import is_shortage
from trigraph.runtime.device.weight_source import WeightSource
from trigraph.runtime.state.state import StateBuffer

_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
# The odd ends of prompts should not fill memory with bindings.
_MAX_BINDINGS = 64
_ALIGNMENT = 256  # of arrays that lie together


@dataclass(frozen=True)
class Binding:
    """One shape of a step: fill `inputs`, call `run`, read `outputs` (valid until the next run of the same graph)."""

    exchange: Exchange
    enqueue: Callable[[], None]
    """Runs the graph on what was sent; on a GPU, nobody waits for its end."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Arrays to fill in, all of them."""
        return self.exchange.inputs

    @property
    def outputs(self) -> Mapping[str, Any]:
        """What the step made."""
        return self.exchange.outputs

    def begin(self) -> None:
        """Sends what was filled in, and runs the graph; on a GPU, nobody waits for its end."""
        self.exchange.send()
        self.enqueue()

    def run(self) -> None:
        """The step, until its outputs are there."""
        self.begin()
        self.exchange.receive()


class Graph(Protocol):
    """A graph that steps can be bound to."""

    @property
    def pieces(self) -> int:
        """How many prefills may follow each other before the host waits: those of a graph whose parts take turns."""

    def bind(self, tokens: int, sequences: int, images: int = 0) -> Binding:
        """The binding for `tokens` tokens of `sequences` sequences in all, of which `images` are rows of images."""


class Buffers:
    """Arrays of a step that lie behind each other, in memory that is taken anew when more is wanted."""

    def __init__(self, device: Device) -> None:
        self._memory: dict[str, Memory] = {}
        self._device = device

    def arrays(self, side: str, wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> dict[str, Memory]:
        """Uninitialised ones of these shapes and types, in the memory `side`."""
        places, end = [], 0
        for shape, dtype in wanted.values():
            places.append(end)
            end += -(-math.prod(shape) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
        memory = self._memory.get(side)
        if memory is None or len(memory) < end:
            memory = self._memory[side] = self._device.zeros((1 << max(0, end - 1).bit_length(),), np.dtype(np.uint8))
        return {
            name: self._device.part(memory, start, shape, np.dtype(dtype))
            for start, (name, (shape, dtype)) in zip(places, wanted.items(), strict=True)
        }


class SessionGraph:
    """One graph in ONNX Runtime, on the state tensors that it reads and writes."""

    pieces = 1

    def __init__(
        self,
        name: str,
        session: ort.InferenceSession,
        device: Device,
        state: Mapping[str, StateBuffer],
        columns: Mapping[str, int],
        source: WeightSource,
    ) -> None:
        """`name` is the graph's; `columns`: see State. `source`: of weights that live as long as it."""
        self._name = name
        self._session = session
        self._device = device
        self._source = source
        self._columns = columns
        names = [arg.name.removeprefix("past.") for arg in session.get_inputs()]
        self._state = {name: state[name] for name in names if name in state}
        self._swapped = [buffer for buffer in self._state.values() if buffer.write_index != buffer.read_index]
        self._buffers, self._exchange, self._options = Buffers(device), device.exchanges(), device.run_options()
        self._steps: OrderedDict[tuple[int, ...], BoundStep] = OrderedDict()
        pending = [buffer.current for name, buffer in self._state.items() if name.endswith((".window", ".gates"))]
        self._captures = device.captures(name, pending)
        # What the session frees, in whichever thread it ends, must end no capture.
        weakref.finalize(self, device.enter).atexit = False

    def bind(self, tokens: int, sequences: int, images: int = 0) -> Binding:
        """The binding for a shape, made at its first use; to be run before any other graph."""
        shape = (tokens, sequences, images, *[buffer.read_index for buffer in self._swapped])
        step = self._captures.captured(shape) if self._captures else None
        if step is None:
            step = self._steps.get(shape)
            if step is None:
                step = self._steps[shape] = self._make(shape, tokens, sequences, images)
                if len(self._steps) > _MAX_BINDINGS:
                    self._steps.popitem(last=False)
            self._steps.move_to_end(shape)
        return Binding(step.exchange, partial(self._run, step))

    def _make(self, shape: tuple[int, ...], tokens: int, sequences: int, images: int) -> BoundStep:
        # Names of dimensions in the graph contract.
        sizes = {"T": tokens, "S": sequences, "S+1": sequences + 1, "I": images, **self._columns}
        io = self._session.io_binding()
        read = {f"past.{name}": buffer.arrays[buffer.read_index] for name, buffer in self._state.items()}
        written = {f"present.{name}": buffer.arrays[buffer.write_index] for name, buffer in self._state.items()}
        inputs = self._arrays("in", self._session.get_inputs(), sizes)
        # Logits last: a device hands over what lies before them in one piece.
        outputs = self._arrays("out", sorted(self._session.get_outputs(), key=lambda arg: arg.name == "logits"), sizes)
        self._device.bind(io, read | inputs, written | outputs)
        return BoundStep(shape, tokens, io, inputs, self._exchange(inputs, outputs))

    def _run(self, step: BoundStep) -> None:
        run = partial(run_session, self._session, self._device, self._source, step.io)
        replay = self._captures.replay(step, run) if self._captures else None
        self._source.before_step(self._name)
        run(replay or self._options)
        for buffer in self._swapped:
            buffer.read_index = buffer.write_index

    def _arrays(self, side: str, args: Sequence[ort.NodeArg], sizes: Mapping[str, int]) -> dict[str, Memory]:
        """Memory for the inputs or outputs that are no state."""
        shapes = {
            arg.name: (tuple(sizes[dim] if isinstance(dim, str) else dim for dim in arg.shape), _DTYPES[arg.type])
            for arg in args
            if not arg.name.startswith(("past.", "present."))
        }
        return self._buffers.arrays(side, shapes)


def run_session(
    session: ort.InferenceSession, device: Device, source: WeightSource, io: ort.IOBinding, options: ort.RunOptions
) -> None:
    """A run of a graph; on a GPU, nobody waits for its end. Raises TrigraphError when it fails."""
    device.enter()
    try:
        session.run_with_iobinding(io, options)
    except Exception as error:
        raise (source.shortage(error) or TrigraphError(f"a step failed: {_first_line(error)}")) from error


def session_options(threads: int, weights_folder: Path, library: Path | None) -> ort.SessionOptions:
    """The options of every session: our operators, `threads` threads, weights mapped and not packed.

    The graph must be given as bytes; its weights are looked for in `weights_folder`.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and told once
    if library is not None:
        options.register_custom_ops_library(str(library))
    # A pool of threads for each session that spins only while the session runs: within 3 % of one shared pool for steps
    # of a millisecond, and a shared one makes every other session of the process fail that does not join it.
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Weights stay in the mapped file: packing them would copy them once for each session.
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights_folder))
    return options


def open_session(
    path: Path,
    changed: onnx.ModelProto | None,
    initializers: Mapping[str, ort.OrtValue],
    weights_folder: Path,
    threads: int,
    device: Device,
) -> ort.InferenceSession:
    """A session for one graph file, or for `changed` in its place.

    Weights that are not among `initializers` are in `weights_folder`.

    Without the operator library a portable graph runs its function bodies. Raises TrigraphError when ONNX Runtime
    refuses the graph or its weights.
    """
    source = path.read_bytes() if changed is None else changed.SerializeToString()
    check_name(weights_folder)
    device.enter()
    options = session_options(threads, weights_folder, device.library)
    for name, value in initializers.items():
        options.add_initializer(name, value)
    try:
        session = device.session(source, options, path.stem)
    except Exception as error:  # ONNX Runtime's exceptions share no base class of their own
        if is_shortage(error):
            raise  # no fault of the graph
        raise TrigraphError(
            f"{path}: ONNX Runtime cannot open the graph ({_first_line(error)}); export it again"
        ) from error
    if device.provider not in session.get_providers():
        raise TrigraphError(f"{path}: ONNX Runtime opened the graph without its {device.provider}; use device=cpu")
    return session


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
