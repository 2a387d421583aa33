"""The supported architectures: the same blocks, and all in which they differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """What the architecture's name alone tells about a model."""

    name: str
    """`general.architecture` of the GGUF file, and the prefix of its keys."""
    moe: bool
    """Feed-forward layers are mixtures of experts beside a shared expert."""
    gdn_tiled: bool
    """Value head h of Gated DeltaNet uses key head h % k_heads; otherwise h // (v_heads / k_heads)."""
    fused_beta_alpha: bool
    """One matrix projects to beta and alpha; its rows are, for each key head, its value heads' beta, then alpha."""
    rope_sections: bool
    """Files state how rotary dimensions are divided for images."""
    pre_tokenizer: str
    """`tokenizer.ggml.pre` of its files."""
    optional_expert_norm: bool = False
    """Files say whether the weights of a token's experts are normalised; in the others they are, whatever files say."""
    sigmoid_gate: bool = False
    """The output of Gated DeltaNet is gated by sigmoid, in the others by silu."""
    streams: bool = False
    """It has several residual streams, n-grams, and attention that sees chosen groups of positions."""


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            "qwen35", moe=False, gdn_tiled=True, fused_beta_alpha=False, rope_sections=True, pre_tokenizer="qwen35"
        ),
        Architecture(
            "qwen35moe", moe=True, gdn_tiled=True, fused_beta_alpha=False, rope_sections=True, pre_tokenizer="qwen35"
        ),
        Architecture(
            "qwen3next",
            moe=True,
            gdn_tiled=False,
            fused_beta_alpha=True,
            rope_sections=False,
            pre_tokenizer="qwen2",
            optional_expert_norm=True,
        ),
        Architecture(
            "qwen4exp",
            moe=True,
            gdn_tiled=True,
            fused_beta_alpha=False,
            rope_sections=True,
            pre_tokenizer="qwen35",
            sigmoid_gate=True,
            streams=True,
        ),
    )
}
