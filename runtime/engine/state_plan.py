"""How much state a model gets: the length of sequences, and the memory of all of them."""

from __future__ import annotations

from trigraph.exporter import Manifest
from trigraph.models.checks import check
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.parts.placing import WORKING_BYTES as DEVICE_WORKING_BYTES
from trigraph.runtime.engine.config import EngineConfig
from trigraph.runtime.execution.parts import Memories
from trigraph.runtime.state.sequence import StateLimits
from trigraph.runtime.state.sizes import Budgets, StateSizes

WORKING_BYTES = 96 << 20
"""What sessions, tokenizer and activations take on a CPU, roughly."""
_UNKNOWN_MEMORY = 4 << 30  # bytes taken for free where the system does not say


def device_bytes(manifest: Manifest, config: EngineConfig, weight_bytes: int, memories: Memories) -> int:
    """What a model takes of GPUs: weights, state, and a layer for each end of a GPU, where there may be gaps."""
    _, sizes = plan_state(manifest, config, memories, weight_bytes)
    gaps = (len(memories.devices) - 1) * weight_bytes // manifest.config.trunk_layers
    return weight_bytes + sum(sizes.nbytes(manifest.state).values()) + gaps


def plan_state(
    manifest: Manifest, config: EngineConfig, memories: Memories, weight_bytes: int
) -> tuple[StateLimits, StateSizes]:
    """How long sequences may be, and how much memory state takes."""
    budgets = Budgets(config.sequences, config.kv_memory, config.checkpoint_memory, config.memory_share)
    *_, device = memories.devices
    double_buffered, free = device.library is None, None
    at_once = double_buffered or not device.is_host  # each step copies all of the state, or the device takes it
    if not double_buffered:
        working = WORKING_BYTES if device.is_host else len(memories.devices) * DEVICE_WORKING_BYTES
        free = max(0, sum(memories.nbytes(_UNKNOWN_MEMORY)) - weight_bytes - working)
    context = config.context
    if context is None:
        asked = free if config.context_by_memory else None
        context = budgets.context(manifest.state, manifest.max_context, manifest.page_size, asked, at_once=at_once)
    limits = _limits(manifest, context)
    return limits, budgets.sizes(manifest.state, limits, None if at_once else free, 1 + double_buffered)


def _limits(manifest: Manifest, context: int) -> StateLimits:
    most = manifest.max_context
    check("context", context, int)
    if not 0 <= context <= most:
        remedy = ""
        if (factor := -(-context // manifest.config.context_length)) > 1:
            remedy = f"; YaRN extends it: rope_scaling=yarn:{factor}"
        elif context > most:
            remedy = "; export it with a larger max_context"
        raise TrigraphError(f"context is {context}; the package was exported for 1 to {most} tokens{remedy}")
    rest = manifest.page_size, manifest.max_pending, manifest.config.residual, manifest.reach
    return StateLimits(context or most, *rest)
