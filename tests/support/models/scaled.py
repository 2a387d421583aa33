"""Small models of NVFP4 whose matrices have factors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from support.models.gguf_bytes import contents, gguf_bytes
from support.models.random_gguf import Architecture, Item, write_random
from trigraph.models.names import scale

SCALED = (
    "attn_q.", "attn_output.", "attn_qkv.", "ssm_out.", "ffn_gate", "ffn_up", "ffn_down", "nextn.eh_proj."
)  # fmt: skip


def write_scaled(path: Path, architecture: Architecture, mtp: bool = True) -> Path:
    """A random model of NVFP4 with factors about 1, and those of activations, which count for nothing here."""
    rng = np.random.default_rng(3)

    def with_factors(item: Item) -> Iterator[Item]:
        yield item
        if len(item.shape) > 1 and "_inp" not in item.name and any(name in item.name for name in SCALED):
            factor = Item(scale(item.name), item.shape[:-2] or (1,), "norm")
            yield from (factor, replace(factor, name=factor.name.replace(".scale", ".input_scale")))

    write_random(path, architecture, preset="blocks", dtype="NVFP4", mtp=mtp, edit=with_factors)
    pairs, tensors = contents(path)
    for name, entry in tensors.items():
        if name.endswith("scale"):
            values = rng.uniform(0.5, 2, len(np.frombuffer(entry.data, np.float32))).astype(np.float32)
            tensors[name] = replace(entry, data=values.tobytes())
    path.write_bytes(gguf_bytes(pairs, tensors))
    return path
