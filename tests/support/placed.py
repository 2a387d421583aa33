"""Budgets of a GPU's memory that hold a share of a model's routed experts."""

from __future__ import annotations

from pathlib import Path

from trigraph.exporter import read_manifest
from trigraph.exporter.package.external import load_checked
from trigraph.runtime.device.cuda_experts import weights_of
from trigraph.runtime.device.placement import WORKING_BYTES, Weights
from trigraph.runtime.state.sequence import StateLimits
from trigraph.runtime.state.sizes import Budgets
from trigraph.runtime.state.state import State


def weights_of_package(package: Path) -> Weights:
    """What its graphs read."""
    manifest = read_manifest(package)
    allowed = manifest.weight_paths(package)
    return weights_of({name: load_checked(package / f"{name}.onnx", allowed) for name in manifest.graphs})


def budget_for(package: Path, share: float, context: int, sequences: int) -> int:
    """Bytes for which `load` with these settings puts that share of the experts on the GPU, and the head's if any."""
    manifest, weights = read_manifest(package), weights_of_package(package)
    limits = StateLimits(context, manifest.page_size, manifest.max_pending, manifest.config.hidden)
    state = State(manifest.state, limits, Budgets(sequences).sizes(manifest.state, limits, None))
    head, layers = ([layer for layer in weights.layers if layer.head == is_head] for is_head in (True, False))
    experts = sum(layer.experts * layer.expert_bytes for layer in layers)
    head_bytes = sum(layer.experts * layer.expert_bytes for layer in head) if share else 0
    return WORKING_BYTES + weights.trunk_bytes + state.nbytes() + head_bytes + int(share * experts)
