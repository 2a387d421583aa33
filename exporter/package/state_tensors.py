"""The tensors that live between steps: KV pages, and the state, window and gates of Gated DeltaNet layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trigraph.models.config import ModelConfig

MAX_PENDING = 8
"""K: most tokens of a sequence in one verify, and so the most that can wait for acceptance."""
PAGE_SIZE = 64
"""Positions in a KV page."""

KV_TYPES = {"f16": "float16", "f32": "float32"}
_ITEM_BYTES = {"float16": 2, "float32": 4}


@dataclass(frozen=True)
class StateTensor:
    """A buffer that graphs take as `past.{name}` and give back as `present.{name}`."""

    name: str
    dtype: str
    """"float16" or "float32"."""
    dims: tuple[int | str, ...]
    """The first one is "slots" or "pages", which the host chooses."""
    graphs: tuple[str, ...]
    """The graphs that read and write it."""

    @property
    def item_bytes(self) -> int:
        """Bytes of one slot or page."""
        return math.prod(int(size) for size in self.dims[1:]) * _ITEM_BYTES[self.dtype]


def state_tensors(config: ModelConfig, kv_type: str) -> tuple[StateTensor, ...]:
    """Every state tensor of a model, in the order of the layers."""
    tensors = []
    for layer, recurrent in enumerate(config.recurrent):
        prefix = f"{'gdn' if recurrent else 'kv'}.{layer}"
        tensors += (
            _recurrent_state(config, prefix) if recurrent else _pages(config, prefix, kv_type, ("prefill", "verify"))
        )
    if config.mtp_layers:
        tensors += _pages(config, "mtp", kv_type, ("prefill", "draft"))
    return tuple(tensors)


def _pages(config: ModelConfig, prefix: str, kv_type: str, graphs: tuple[str, ...]) -> list[StateTensor]:
    dims = ("pages", PAGE_SIZE, config.kv_heads, config.head_dim)
    return [StateTensor(f"{prefix}.{part}", KV_TYPES[kv_type], dims, graphs) for part in ("key", "value")]


def _recurrent_state(config: ModelConfig, prefix: str) -> list[StateTensor]:
    sizes: dict[str, tuple[int, ...]] = {
        "state": (config.gdn_v_heads, config.gdn_head_dim, config.gdn_head_dim),
        "window": (config.conv_kernel - 1 + MAX_PENDING, config.gdn_channels),
        "gates": (MAX_PENDING, 2 * config.gdn_v_heads),
    }
    return [
        StateTensor(f"{prefix}.{part}", "float32", ("slots", *size), ("prefill", "verify"))
        for part, size in sizes.items()
    ]
