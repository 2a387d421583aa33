"""The graphs of a package as ONNX Runtime sessions, with bindings that stay fixed.

A step fills small arrays and runs: nothing is allocated or bound for a number of tokens and sequences seen before.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort

from trigraph.models.errors import TrigraphError, check_name
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.exchange import Array, Exchange, Memory
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.memory import is_shortage
from trigraph.runtime.state.state import StateBuffer

_log = logging.getLogger("trigraph.sessions")
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
# The odd ends of prompts should not fill memory with bindings.
_MAX_BINDINGS = 64
_ALIGNMENT = 256  # of arrays that lie together
_MOST_CAPTURES = 96  # of a session: ONNX Runtime does not give them back before it ends
_MOST_USES = 4096  # shapes whose runs are counted; then the counts begin anew
_ATTEMPTS = 3  # at a capture: what else the process does with a device may end one


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

    def run(self) -> None:
        """The step, until its outputs are there."""
        self.exchange.send()
        self.enqueue()
        self.exchange.receive()


class _Use(threading.local):
    """Of one shape by one thread: ONNX Runtime captures for each."""

    runs = failures = 0
    captured = False

    def counts(self, captured_at: int) -> bool:
        """Counts a run; whether it is to be captured."""
        self.runs += 1
        return not self.captured and captured_at <= self.runs and self.failures < _ATTEMPTS


class Graph(Protocol):
    """A graph that steps can be bound to."""

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

    def __init__(
        self,
        name: str,
        session: ort.InferenceSession,
        device: Device,
        state: Mapping[str, StateBuffer],
        pages: int,
        weights: MappedWeights,
    ) -> None:
        """`name` is the graph's, `pages` the width of the page table; `weights` live as long as they are read."""
        self._name = name
        self._session = session
        self._device = device
        self._weights = weights
        self._pages = pages
        names = [arg.name.removeprefix("past.") for arg in session.get_inputs()]
        self._state = {name: state[name] for name in names if name in state}
        self._pending = [buffer for name, buffer in self._state.items() if name.endswith((".window", ".gates"))]
        self._swapped = [buffer for buffer in self._state.values() if buffer.write_index != buffer.read_index]
        self._buffers, self._staging = Buffers(device), device.staging()
        self._bindings: OrderedDict[tuple[int, ...], Binding] = OrderedDict()
        self._captured: dict[tuple[int, ...], Binding] = {}  # those that some thread has captured stay
        self._uses: dict[tuple[int, ...], _Use] = {}  # which outlast bindings: shapes in turns evict each other
        self._made = self._captures = 0  # bindings and captures so far
        # What the session frees, in whichever thread it ends, must end no capture.
        weakref.finalize(self, device.enter).atexit = False

    def bind(self, tokens: int, sequences: int, images: int = 0) -> Binding:
        """The binding for a shape, made at its first use; to be run before any other graph."""
        key = (tokens, sequences, images, *[buffer.read_index for buffer in self._swapped])
        if key in self._captured:
            return self._captured[key]
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._bindings[key] = self._make(key, tokens, sequences, images)
            if len(self._bindings) > _MAX_BINDINGS:
                self._bindings.popitem(last=False)
        self._bindings.move_to_end(key)
        return binding

    def _make(self, key: tuple[int, ...], tokens: int, sequences: int, images: int) -> Binding:
        # Names of dimensions in the graph contract.
        sizes = {"T": tokens, "S": sequences, "S+1": sequences + 1, "P": self._pages, "I": images}
        io, device = self._session.io_binding(), self._device
        for arg in self._session.get_inputs():
            if buffer := self._state.get(arg.name.removeprefix("past.")):
                device.bind_input(io, arg.name, buffer.arrays[buffer.read_index])
        for arg in self._session.get_outputs():
            if buffer := self._state.get(arg.name.removeprefix("present.")):
                device.bind_output(io, arg.name, buffer.arrays[buffer.write_index])
        inputs = self._arrays("in", self._session.get_inputs(), sizes)
        # Logits last: a device hands over what lies before them in one piece.
        outputs = self._arrays("out", sorted(self._session.get_outputs(), key=lambda arg: arg.name == "logits"), sizes)
        for name, memory in inputs.items():
            device.bind_input(io, name, memory)
        for name, memory in outputs.items():
            device.bind_output(io, name, memory)
        exchange = device.exchange(self._staging, inputs, outputs)
        self._made += 1
        plain, replay = device.run_options(self._name), device.run_options(self._name, self._made)
        captured_at = device.captures(self._name, tokens, sequences)
        graph = weakref.proxy(self)  # which keeps the binding: both ways, they would stay until the collector comes
        if not captured_at:
            return Binding(exchange, lambda: graph._run(io, plain))
        if len(self._uses) >= _MOST_USES:
            self._uses.clear()  # what is captured keeps its own
        use = self._uses.setdefault(key, _Use())

        def enqueue() -> None:
            if use.counts(captured_at) and graph._captures < _MOST_CAPTURES:
                accepted = [inputs["accepted"]] if "accepted" in inputs else []
                with device.capturing() as may:
                    use.captured = may and graph._capture(io, replay, exchange, accepted)
                    use.failures += may and not use.captured
            if use.captured and key not in graph._captured:
                graph._captured[key] = made()
                graph._bindings.pop(key, None)
            graph._run(io, replay if use.captured else plain)

        binding = Binding(exchange, enqueue)
        made = weakref.ref(binding)
        return binding

    def _capture(
        self, io: ort.IOBinding, options: ort.RunOptions | None, exchange: Exchange, accepted: Sequence[Memory]
    ) -> bool:
        """A run of a thread that ONNX Runtime makes three of: the second may have fewer tokens to commit from.

        So nothing is committed, which leaves the state as it is, and what waits for that is put back. Attention's
        entries are written anew by the run that counts. False where the step was not captured: what another thread
        does on the device may end a capture, and an error of the step itself comes again with the run that counts.
        """
        slots = exchange.sent["slots_out"].tolist() if "slots_out" in exchange.sent else []
        pending = [buffer.arrays[buffer.write_index] for buffer in self._pending]
        try:
            with self._device.kept(pending, slots), self._device.cleared(accepted):
                self._run_once(io, options)
        except TrigraphError as error:
            _log.debug("%s: a step of this shape was not captured: %s", self._name, error)
            return False
        self._captures += 1
        return True

    def _run(self, io: ort.IOBinding, options: ort.RunOptions | None) -> None:
        self._device.before_step(self._name)
        self._run_once(io, options)
        for buffer in self._swapped:
            buffer.read_index = buffer.write_index

    def _run_once(self, io: ort.IOBinding, options: ort.RunOptions | None) -> None:
        run_session(self._session, self._device, io, options)

    def _arrays(self, side: str, args: Sequence[ort.NodeArg], sizes: Mapping[str, int]) -> dict[str, Memory]:
        """Those that are no state."""
        shapes = {
            arg.name: (tuple(sizes[dim] if isinstance(dim, str) else dim for dim in arg.shape), _DTYPES[arg.type])
            for arg in args
            if not arg.name.startswith(("past.", "present."))
        }
        return self._buffers.arrays(side, shapes)


def run_session(
    session: ort.InferenceSession, device: Device, io: ort.IOBinding, options: ort.RunOptions | None
) -> None:
    """A run of a graph; on a GPU, nobody waits for its end. Raises TrigraphError when it fails."""
    device.enter()
    try:
        session.run_with_iobinding(io, options)
    except Exception as error:
        raise (device.shortage(error) or TrigraphError(f"a step failed: {_first_line(error)}")) from error


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
        with device.opening():
            session = ort.InferenceSession(source, options, providers=device.providers(path.stem), enable_fallback=0)
    except Exception as error:  # ONNX Runtime's exceptions share no base class of their own
        if is_shortage(error):
            raise  # no fault of the graph
        raise TrigraphError(
            f"{path}: ONNX Runtime cannot open the graph ({_first_line(error)}); export it again"
        ) from error
    if device.provider not in session.get_providers():
        raise TrigraphError(f"{path}: ONNX Runtime opened the graph without its {device.provider}; use --device cpu")
    return session


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
