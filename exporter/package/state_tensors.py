"""The tensors that live between steps: KV pages, the state, window and gates of Gated DeltaNet, a window of n-grams."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trigraph.models.config import ModelConfig
from trigraph.models.drafter.config import BlockDrafterConfig
from trigraph.models.errors import TrigraphError

MAX_PENDING = 8
"""K of packages: most tokens of a sequence in one verify, and so the most that can wait for acceptance."""
PAGE_SIZE = 64
"""Positions in a KV page."""
MOST_WINDOW = 4096
"""Layers of a drafter that slide over more positions keep pages: every checkpoint has a copy of each ring."""

KV_TYPES = {"f16": "float16", "f32": "float32", "q8_0": "uint8"}
"""Element types of the tensors for each type of keys and values; q8_0 is bytes of blocks."""
_PAGE = ("pages", PAGE_SIZE)
_ITEM_BYTES = {"float16": 2, "float32": 4, "uint8": 1}
_Q8_WIDTH, _Q8_BYTES = 32, 34  # codes of a Q8_0 block, and its bytes: to import gguf takes long


@dataclass(frozen=True)
class StateTensor:
    """A buffer that graphs take as `past.{name}` and give back as `present.{name}`."""

    name: str
    dtype: str
    """"float16", "float32" or "uint8"."""
    dims: tuple[int | str, ...]
    """The first one is "slots" or "pages", which the host chooses."""
    graphs: tuple[str, ...]
    """The graphs that read and write it."""

    @property
    def ring(self) -> int:
        """Positions of a sequence that a slot holds, position p in row p % ring; 0 in tensors that are no ring."""
        return int(self.dims[1]) if self.dims[0] == "slots" and self.name.startswith("draft.") else 0

    @property
    def item_bytes(self) -> int:
        """Bytes of one slot or page."""
        return math.prod(int(size) for size in self.dims[1:]) * _ITEM_BYTES[self.dtype]


def state_tensors(
    config: ModelConfig, kv_type: str, max_pending: int = MAX_PENDING, drafter: BlockDrafterConfig | None = None
) -> tuple[StateTensor, ...]:
    """Every state tensor of a model and its block drafter, in the order of the layers.

    Raises TrigraphError when blocks of the type do not fit heads.
    """
    tensors = []
    for layer, recurrent in enumerate(config.recurrent):
        prefix = f"{'gdn' if recurrent else 'kv'}.{layer}"
        tensors += (
            _recurrent_state(config, prefix, max_pending)
            if recurrent
            else _pages(config, prefix, kv_type, ("prefill", "verify"))
        )
        if not recurrent:
            tensors += _index(config, f"index.{layer}", kv_type, ("prefill", "verify"))
    if config.streams is not None and (ngrams := config.streams.ngrams) is not None:
        size = (ngrams.history + max_pending, config.residual)
        tensors.append(_slots(f"ngrams.{ngrams.layer}.window", size))
    if config.mtp_layers:
        tensors += _pages(config, "mtp", kv_type, ("prefill", "draft"))
        tensors += _index(config, "mtp.index", kv_type, ("prefill", "draft"))
    if drafter is not None:
        for layer, sliding in enumerate(drafter.sliding):
            rows = _ring(drafter, max_pending) if sliding and drafter.window <= MOST_WINDOW else _PAGE
            tensors += _pages(drafter, f"draft.{layer}", kv_type, ("prefill", "block", "verify"), rows)
    return tuple(tensors)


def _ring(drafter: BlockDrafterConfig, max_pending: int) -> tuple[str, int]:
    """Pages as large as a slot: they hold what the first row of a block sees, and all that a round writes behind it."""
    needed = drafter.window - 1 + max(drafter.block, max_pending)
    return "slots", -(-needed // PAGE_SIZE) * PAGE_SIZE


def _pages(
    config: ModelConfig | BlockDrafterConfig,
    prefix: str,
    kv_type: str,
    graphs: tuple[str, ...],
    rows: tuple[str, int] = _PAGE,
) -> list[StateTensor]:
    size = config.head_dim
    if kv_type == "q8_0":
        if size % _Q8_WIDTH:
            raise TrigraphError(
                f"kv_type is 'q8_0', which needs heads of a multiple of {_Q8_WIDTH}, not {size}; use f16"
            )
        size = size // _Q8_WIDTH * _Q8_BYTES
    dims = (*rows, config.kv_heads, size)
    return [StateTensor(f"{prefix}.{part}", KV_TYPES[kv_type], dims, graphs) for part in ("key", "value")]


def _index(config: ModelConfig, name: str, kv_type: str, graphs: tuple[str, ...]) -> list[StateTensor]:
    """Keys by which rows choose what they see, a row for each position; quantised ones would choose otherwise."""
    if config.streams is None:
        return []
    dtype = "float32" if kv_type == "f32" else "float16"
    return [StateTensor(name, dtype, ("pages", PAGE_SIZE, config.streams.indexer.head_dim), graphs)]


def _recurrent_state(config: ModelConfig, prefix: str, max_pending: int) -> list[StateTensor]:
    sizes: dict[str, tuple[int, ...]] = {
        "state": (config.gdn_v_heads, config.gdn_head_dim, config.gdn_head_dim),
        "window": (config.conv_kernel - 1 + max_pending, config.gdn_channels),
        "gates": (max_pending, 2 * config.gdn_v_heads),
    }
    return [_slots(f"{prefix}.{part}", size) for part, size in sizes.items()]


def _slots(name: str, size: tuple[int, ...]) -> StateTensor:
    """A recurrent state tensor, with `size` numbers in each slot; every step of the trunk may change it."""
    return StateTensor(name, "float32", ("slots", *size), ("prefill", "verify"))
