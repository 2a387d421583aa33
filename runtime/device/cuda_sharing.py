"""What a GPU and the CPU share of a model: the decision, and the tables that all graphs read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort

from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.cuda_experts import held_stacks, tables
from trigraph.runtime.device.cuda_library import CudaLibrary
from trigraph.runtime.device.cuda_weights import CudaWeights
from trigraph.runtime.device.memory import RetryError
from trigraph.runtime.device.moving_experts import MovingExperts, Stack
from trigraph.runtime.device.placement import WORKING_BYTES, Placement, Weights, nowhere, place, without_experts

Values = Mapping[str, ort.OrtValue]

_SHORTAGE = (
    "out of memory",
    "Failed to allocate memory",
    "bytes of memory left",
    "Available memory of",
    "ONNX Runtime failed in GetOutput",  # the memory of a node's output
)
"""How CUDA, ONNX Runtime and our kernels word it."""


@dataclass
class Sharing:
    """Which layers and experts are the CPU's."""

    placement: Placement | None = None
    """What lies where; None before that is decided, and where the GPU has all."""
    threads: int = 1
    """Of the CPU, for its experts, and for rows of tables."""
    moving: MovingExperts | None = None
    """What moves them, where places are not fixed."""

    @property
    def places(self) -> Mapping[str, int]:
        """The tables in the host's memory, by address; none where places are fixed."""
        return {} if self.moving is None else self.moving.places

    def use_threads(self, threads: int) -> None:
        """Of so many in all, one has the engine, which waits for the GPU."""
        self.threads = max(1, threads - 1)

    def begin(self, placement: Placement, moving: MovingExperts | None) -> None:
        """Takes the decision."""
        self.placement, self.moving = placement, moving


def placed(
    library: CudaLibrary, weights: Weights, state_bytes: int, budget: int | None, *, all_on_host: bool
) -> Placement:
    """Where weights and state go. `budget`: bytes that they may take; None for what is free.

    Raises TrigraphError for a budget that is above what the GPU has, or too small.
    """
    free, total = library.free_memory()
    if budget is not None and budget > total:
        raise TrigraphError(f"gpu_memory is {budget / 1e9:,.2f} GB, and the GPU has {total / 1e9:,.2f} GB in all")
    most = free if budget is None else min(budget, free)
    if budget is None and weights.trunk_bytes + state_bytes <= most < weights.trunk_bytes + state_bytes + WORKING_BYTES:
        return nowhere(weights, state_bytes)  # which may just do
    found = place(weights, state_bytes, most)
    return without_experts(found) if all_on_host else found


def shortage(error: Exception, moving: MovingExperts | None) -> TrigraphError | None:
    """What an error of a step means, where it is a want of the GPU's memory: experts go back to the CPU for it."""
    if not any(sign in str(error) for sign in _SHORTAGE):
        return None
    if moving is not None and moving.give_back():
        return RetryError("a step failed as the GPU had no memory left; the CPU has taken some experts back")
    return TrigraphError(
        "a step failed as the GPU has no memory left; close other programs that use it, or load with a smaller "
        "--gpu-memory, a smaller context or fewer sequences"
    )


def shared_tables(
    moving: MovingExperts, weights: CudaWeights, graph: onnx.GraphProto, mapped: Values, held: Values
) -> dict[str, ort.OrtValue]:
    """The tables of a graph's layers, on the GPU. Tells what moves experts where their weights lie."""
    sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer}

    def stack(whole: str, part: str) -> Stack:
        nbytes = mapped[whole].tensor_size_in_bytes() // sizes[whole]
        return Stack(mapped[whole].data_ptr(), held[part].data_ptr(), nbytes)

    stacks = held_stacks(graph)
    moving.found({layer: [stack(*names) for names in parts] for layer, parts in stacks.items()}, weights.release)
    like = {layer: ort.OrtValue.ortvalue_from_numpy(np.zeros(sizes[layer], np.int32)) for layer in tables(graph)}
    return {table: weights.at(moving.table(layer), like[layer]) for layer, table in tables(graph).items()}
