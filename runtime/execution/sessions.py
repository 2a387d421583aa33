"""The graphs of a package as ONNX Runtime sessions, with bindings that stay fixed.

A step fills small arrays and runs: nothing is allocated or bound for a number of tokens and sequences seen before.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort

from trigraph.models.errors import TrigraphError, check_name
from trigraph.runtime.device.device import Array, Device, Exchange, Memory
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.memory import is_shortage
from trigraph.runtime.state.state import StateBuffer

_DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
# Verifies and drafts have few shapes; the odd ends of prompts should not fill memory with bindings.
_MAX_BINDINGS = 64


@dataclass(frozen=True)
class Binding:
    """One shape of a step: fill `inputs`, call `run`, read `outputs` (valid until the next run of the same graph)."""

    exchange: Exchange
    enqueue: Callable[[], None]
    """Runs the graph on what was sent; on a GPU, nobody waits for its end."""
    captured: bool = False
    """Whether it has a graph in ONNX Runtime, which does not give that back before the session ends."""

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


class Graph(Protocol):
    """A graph that steps can be bound to."""

    def bind(self, tokens: int, sequences: int) -> Binding:
        """The binding for `tokens` tokens of `sequences` sequences in all."""


class Buffers:
    """An array for each name, made anew when more rows are wanted; views of fewer rows share its memory."""

    def __init__(self, device: Device) -> None:
        self._arrays: dict[str, Memory] = {}
        self._device = device

    def view(self, name: str, rows: int, columns: tuple[int, ...], dtype: Any) -> Memory:
        """Uninitialised rows of the array `name`."""
        array = self._arrays.get(name)
        if array is None or len(array) < rows:
            capacity = 1 << (rows - 1).bit_length()
            array = self._arrays[name] = self._device.zeros((capacity, *columns), np.dtype(dtype))
        return array[:rows]


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
        self._recurrent = [
            state[arg.name.removeprefix("past.")] for arg in session.get_inputs() if arg.shape[:1] == ["slots"]
        ]
        self._swapped = [buffer for buffer in self._state.values() if buffer.write_index != buffer.read_index]
        self._buffers = Buffers(device)
        self._bindings: OrderedDict[tuple[int, ...], Binding] = OrderedDict()
        self._captured: dict[tuple[int, ...], Binding] = {}  # few shapes are
        self._made = 0  # bindings so far

    def bind(self, tokens: int, sequences: int) -> Binding:
        """The binding for a shape, made at its first use; to be run before any other graph."""
        key = (tokens, sequences, *(buffer.read_index for buffer in self._swapped))
        binding = self._captured.get(key) or self._bindings.get(key)
        if binding is None:
            binding = self._make(tokens, sequences)
            (self._captured if binding.captured else self._bindings)[key] = binding
            if len(self._bindings) > _MAX_BINDINGS:
                self._bindings.popitem(last=False)
        elif not binding.captured:
            self._bindings.move_to_end(key)
        return binding

    def _make(self, tokens: int, sequences: int) -> Binding:
        # Names of dimensions in the graph contract.
        sizes = {"T": tokens, "S": sequences, "S+1": sequences + 1, "P": self._pages}
        io, device = self._session.io_binding(), self._device
        inputs, outputs = {}, {}
        for arg in self._session.get_inputs():
            name = arg.name.removeprefix("past.")
            if name in self._state:
                buffer = self._state[name]
                device.bind_input(io, arg.name, buffer.arrays[buffer.read_index])
            else:
                inputs[name] = self._buffer("in", arg, sizes)
                device.bind_input(io, arg.name, inputs[name])
        for arg in self._session.get_outputs():
            name = arg.name.removeprefix("present.")
            if name in self._state:
                buffer = self._state[name]
                device.bind_output(io, arg.name, buffer.arrays[buffer.write_index])
            else:
                outputs[name] = self._buffer("out", arg, sizes)
                device.bind_output(io, arg.name, outputs[name])
        exchange = device.exchange(inputs, outputs)
        self._made += 1
        options = device.run_options(self._name, tokens, self._made)
        captured = device.captures(self._name, tokens)
        seen = threading.local()  # ONNX Runtime captures for each thread

        def enqueue() -> None:
            if captured and not hasattr(seen, "by_thread"):
                self._capture(io, options, exchange, [inputs["accepted"]] if "accepted" in inputs else [])
                seen.by_thread = True
            self._run(io, options)

        return Binding(exchange, enqueue, captured)

    def _capture(
        self, io: ort.IOBinding, options: ort.RunOptions | None, exchange: Exchange, accepted: Sequence[Memory]
    ) -> None:
        """A thread's first run, which ONNX Runtime makes three of: the second may have fewer tokens to commit from.

        So nothing is committed, and the recurrent state is put back. Attention's entries are written anew by the run
        that counts.
        """
        slots = exchange.sent["slots_out"].tolist() if "slots_out" in exchange.sent else []
        recurrent = [buffer.arrays[buffer.write_index] for buffer in self._recurrent]
        with self._device.kept(recurrent, slots), self._device.cleared(accepted):
            self._run_once(io, options)

    def _run(self, io: ort.IOBinding, options: ort.RunOptions | None) -> None:
        self._run_once(io, options)
        for buffer in self._swapped:
            buffer.read_index = buffer.write_index

    def _run_once(self, io: ort.IOBinding, options: ort.RunOptions | None) -> None:
        try:
            self._session.run_with_iobinding(io, options)
        except Exception as error:
            raise TrigraphError(f"a step failed: {_first_line(error)}") from error

    def _buffer(self, side: str, arg: ort.NodeArg, sizes: Mapping[str, int]) -> Memory:
        rows, *columns = (sizes[dim] if isinstance(dim, str) else dim for dim in arg.shape)
        return self._buffers.view(f"{side}.{arg.name}", rows, tuple(columns), _DTYPES[arg.type])


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
    options = session_options(threads, weights_folder, device.library)
    for name, value in initializers.items():
        options.add_initializer(name, value)
    try:
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
