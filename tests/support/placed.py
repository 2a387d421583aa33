"""Budgets of a GPU's memory that hold a share of a model's routed experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trigraph.exporter import read_manifest
from trigraph.exporter.package.external import load_checked
from trigraph.runtime import load
from trigraph.runtime.device.cuda_experts import weights_of
from trigraph.runtime.device.placement import WORKING_BYTES


def budget_for(package: Path, share: float, **settings: Any) -> int:
    """Bytes for which `load` with these settings puts about that share of the experts on the GPU."""
    manifest = read_manifest(package)
    allowed = manifest.weight_paths(package)
    weights = weights_of({name: load_checked(package / f"{name}.onnx", allowed) for name in manifest.graphs})
    state = load(package, device="cuda", **settings).steps.state.nbytes()
    head, layers = ([layer for layer in weights.layers if layer.head == is_head] for is_head in (True, False))
    experts = sum(layer.experts * layer.expert_bytes for layer in layers)
    head_bytes = sum(layer.experts * layer.expert_bytes for layer in head) if share else 0
    return WORKING_BYTES + weights.trunk_bytes + state + head_bytes + int(share * experts)
