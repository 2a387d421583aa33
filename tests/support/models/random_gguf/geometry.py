"""Sizes of small models."""

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["qwen35", "qwen35moe", "qwen3next"]


@dataclass(frozen=True)
class Geometry:
    hidden: int
    layers: int
    interval: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_sections: tuple[int, ...]
    k_heads: int
    v_heads: int
    gdn_dim: int
    experts: int
    experts_used: int
    expert_ffn: int
    shared_ffn: int
    ffn: int
    vocab: int
    context: int = 4096
    rope_theta: float = 1e7


PRESETS = {
    # The file that the numbers in tests/oracle were made from: 42 MB.
    "tiny": Geometry(
        hidden=256, layers=8, interval=4, heads=4, kv_heads=2, head_dim=64, rope_dims=16, rope_sections=(3, 3, 2, 0),
        k_heads=2, v_heads=4, gdn_dim=64, experts=16, experts_used=4, expert_ffn=64, shared_ffn=96, ffn=512, vocab=512,
    ),
    # Every matrix row is a multiple of 256, so every block type fits: 15 MB in F32, 2 MB in Q4_K.
    "blocks": Geometry(
        hidden=256, layers=2, interval=2, heads=4, kv_heads=2, head_dim=64, rope_dims=16, rope_sections=(3, 3, 2, 0),
        k_heads=4, v_heads=8, gdn_dim=32, experts=4, experts_used=2, expert_ffn=256, shared_ffn=256, ffn=512, vocab=384,
    ),
    # For tests of logic: 1 MB in F32; Q8_0 and the other types of 32 elements fit.
    "nano": Geometry(
        hidden=64, layers=4, interval=4, heads=4, kv_heads=2, head_dim=32, rope_dims=16, rope_sections=(3, 3, 2, 0),
        k_heads=2, v_heads=4, gdn_dim=32, experts=8, experts_used=2, expert_ffn=32, shared_ffn=32, ffn=128, vocab=320,
    ),
}  # fmt: skip
