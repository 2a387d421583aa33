"""K, the most tokens of a sequence in one verify: only sizes of state tensors depend on it, so a host may choose it."""

from __future__ import annotations

from dataclasses import replace

import onnx

from trigraph.exporter import Manifest
from trigraph.exporter.package.state_tensors import MAX_PENDING, state_tensors
from trigraph.models.checks import check

MOST_PENDING = 256
"""A row of logits for each more takes more memory than is gained."""


def with_pending(manifest: Manifest, count: int | None, most: int) -> Manifest:
    """The manifest of the same package with another K, at most `most`; as it is for None.

    Raises TrigraphError when `count` is out of range.
    """
    if count is None:
        return manifest
    check("max_pending", count, int, lambda k: MAX_PENDING <= k <= MOST_PENDING, f"{MAX_PENDING} to {MOST_PENDING}")
    state = state_tensors(manifest.config, manifest.kv_type, pending := min(count, most), manifest.drafter)
    return replace(manifest, max_pending=pending, state=state)


def resize(model: onnx.ModelProto, manifest: Manifest) -> bool:
    """Gives the state of a package's graph the sizes that a manifest has; whether any is another one."""
    at_first = state_tensors(manifest.config, manifest.kv_type, drafter=manifest.drafter)
    exported = {tensor.name: tensor.dims for tensor in at_first}
    sizes = {tensor.name: tensor.dims for tensor in manifest.state}
    changed = False
    for port in (*model.graph.input, *model.graph.output):
        name = port.name.partition(".")[2]
        for dim, there, size in zip(
            port.type.tensor_type.shape.dim, exported.get(name, ()), sizes.get(name, ()), strict=False
        ):
            if there != size and dim.dim_value == there:
                dim.dim_value, changed = int(size), True
    return changed
