"""Budgets of a GPU's memory that hold a share of a model's routed experts, and what a model has there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from trigraph.exporter import read_manifest
from trigraph.exporter.package.external import load_checked
from trigraph.runtime import Engine
from trigraph.runtime.device.cuda.weight_source import CudaWeightSource
from trigraph.runtime.device.parts.experts import weights_of
from trigraph.runtime.device.parts.layers import state_layer
from trigraph.runtime.device.parts.placing import WORKING_BYTES
from trigraph.runtime.device.parts.weights import Weights
from trigraph.runtime.device.weight_source import WeightSource
from trigraph.runtime.execution.layered_graph import LayeredGraph
from trigraph.runtime.execution.sessions import SessionGraph
from trigraph.runtime.state.sequence import StateLimits
from trigraph.runtime.state.sizes import Budgets


def source_of(engine: Engine) -> CudaWeightSource:
    """Where the steps of a model on a GPU read its weights."""
    *_, (_, source) = parts_of(engine)
    assert isinstance(source, CudaWeightSource)
    return source


def parts_of(engine: Engine) -> list[tuple[int, WeightSource]]:
    """By part of a model, how many layers it has, and where its steps read weights."""
    verify = engine.steps._verify
    graphs = verify.parts if isinstance(verify, LayeredGraph) else [verify]
    found = []
    for graph in graphs:
        assert isinstance(graph, SessionGraph)
        found.append((len({state_layer(name) for name in graph._state} - {None}), graph._source))
    return found


def host_layers(engine: Engine) -> int:
    """How many layers the CPU computes in a GPU's place."""
    return sum(layers for layers, source in parts_of(engine) if not isinstance(source, CudaWeightSource))


def weights_of_package(package: Path, state: Mapping[str, int] = MappingProxyType({})) -> Weights:
    """What its graphs read. `state`: bytes of state tensors by name."""
    manifest = read_manifest(package)
    allowed = manifest.weight_paths(package)
    return weights_of({name: load_checked(package / f"{name}.onnx", allowed) for name in manifest.graphs}, state)


def state_of_package(package: Path, context: int, sequences: int) -> Mapping[str, int]:
    """Bytes of the state tensors with which `load` with these settings serves it on a GPU."""
    manifest = read_manifest(package)
    limits = StateLimits(context, manifest.page_size, manifest.max_pending, manifest.config.hidden, manifest.reach)
    return Budgets(sequences).sizes(manifest.state, limits, None).nbytes(manifest.state)


def budget_for(package: Path, share: float, context: int, sequences: int) -> int:
    """Bytes for which `load` with these settings puts that share of the experts on the GPU, and the head's if any."""
    weights, state = weights_of_package(package), sum(state_of_package(package, context, sequences).values())
    head, layers = ([layer for layer in weights.layers if layer.head == is_head] for is_head in (True, False))
    experts = sum(layer.experts * layer.expert_bytes for layer in layers)
    head_bytes = sum(layer.experts * layer.expert_bytes for layer in head) if share else 0
    return WORKING_BYTES + weights.trunk_bytes + state + head_bytes + int(share * experts)


def budget_for_layers(package: Path, host_layers: int, context: int, sequences: int) -> int:
    """The least budget that leaves so many layers to the CPU, and all routed experts of the others."""
    state = state_of_package(package, context, sequences)
    _, rest = weights_of_package(package, state).divided([host_layers])
    return WORKING_BYTES + rest.trunk_bytes + rest.state_bytes
