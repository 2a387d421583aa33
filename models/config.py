"""Hyperparameters of a hybrid Gated-DeltaNet model, from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass, field

from trigraph.models.architecture import ARCHITECTURES
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.keys import Keys
from trigraph.models.rope_scaling import MOST_FACTOR, RopeScaling
from trigraph.models.streams import Streams, read_streams

CONV_KERNEL = 4
MAX_LAYERS = 1024
HEAD_STEP = 16
"""Elements of a head that kernels take at once."""
# By `general.architecture` or `general.type`, what a file holds instead of a text model.
_NO_MODEL = {
    "clip": "a vision tower (mmproj)",
    "mmproj": "a vision tower (mmproj)",
    "imatrix": "an importance matrix (imatrix)",
    "adapter": "an adapter (LoRA)",
    "vocab": "a vocabulary",
    "dflash": "a block drafter (DFlash)",
}

# Keys that change the mathematics in a way that is not implemented, with the values that do not.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "rope.scaling.alpha": (0.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),  # converters store it in two units
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),  # -1: not given
    "rope.scaling.yarn_attn_factor": (1.0, -1.0),
    "expert_weights_scale": (0.0, 1.0),
    "expert_gating_func": (0, 1),  # 1 is softmax
    "expert_group_count": (0, 1),
    "leading_dense_block_count": (0,),
}


@dataclass(frozen=True)
class ModelConfig:
    """Geometry and constants. Head dimensions and widths count elements."""

    architecture: str
    """A key of ARCHITECTURES."""
    name: str
    trunk_layers: int
    recurrent: tuple[bool, ...]
    """For each trunk layer: Gated DeltaNet (True) or full attention."""
    mtp_layers: int
    """0 or 1; the head is the block after the trunk's."""
    hidden: int
    vocab: int
    context_length: int
    rms_eps: float

    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_theta: float

    gdn_k_heads: int
    gdn_v_heads: int
    gdn_head_dim: int
    conv_kernel: int
    gdn_tiled: bool
    """Value head h uses key head h % k_heads if tiled, h // (v_heads / k_heads) if not."""

    experts: int
    """0 in a dense model."""
    experts_used: int
    expert_ffn: int
    shared_ffn: int
    normalize_experts: bool
    ffn: int
    """Width of the dense feed-forward layer, 0 in a mixture of experts."""

    tied: bool
    """The output matrix is the embedding."""
    rope_scaling: RopeScaling | None = None
    streams: Streams | None = field(default_factory=lambda: None)
    """None in a model with one residual stream, whose manifest need not have the key."""

    @property
    def key_dim(self) -> int:
        return self.gdn_k_heads * self.gdn_head_dim

    @property
    def value_dim(self) -> int:
        return self.gdn_v_heads * self.gdn_head_dim

    @property
    def gdn_channels(self) -> int:
        """Channels of the causal convolution: q, k and v."""
        return 2 * self.key_dim + self.value_dim

    @property
    def fused_beta_alpha(self) -> bool:
        """Whether one matrix projects to beta and alpha of Gated DeltaNet."""
        return ARCHITECTURES[self.architecture].fused_beta_alpha

    @property
    def sigmoid_gate(self) -> bool:
        """Whether the output of Gated DeltaNet is gated by sigmoid, not by silu."""
        return ARCHITECTURES[self.architecture].sigmoid_gate

    @property
    def residual(self) -> int:
        """Width of a row between layers, all its streams together: what the MTP head reads."""
        return self.hidden * (1 if self.streams is None else self.streams.count)


def read_config(file: GGUFFile) -> ModelConfig:
    """The configuration in a file's metadata.

    Raises TrigraphError, naming key and value, for a missing or wrong-typed key, an unknown architecture, and values
    that contradict each other or ask for something that is not implemented.
    """
    name = Keys(file, "general.").get("architecture", "a string", (str,), None)
    _check_is_model(file, name)
    if (architecture := ARCHITECTURES.get(name)) is None:
        raise TrigraphError(
            f"{file.paths[0]}: architecture {quote(name)} is not supported; "
            f"use a file of Qwen3.5, 3.6, 3.8 or Qwen3-Next ({', '.join(ARCHITECTURES)})"
        )
    keys = Keys(file, f"{name}.")
    _check_neutral(keys)

    mtp_layers = keys.integer("nextn_predict_layers", 0, least=0)
    if mtp_layers > 1:
        raise keys.error(
            "nextn_predict_layers", f"is {mtp_layers}, supported are 0 and 1; convert the model with one MTP layer"
        )
    blocks = _blocks(keys, mtp_layers)

    moe = architecture.moe
    recurrent = _recurrent_layers(keys, blocks, mtp_layers)
    hidden, vocab = keys.integer("embedding_length"), _vocabulary_size(Keys(file, "tokenizer.ggml."))
    config = ModelConfig(
        architecture=name,
        name=_name(file),
        trunk_layers=blocks - mtp_layers,
        recurrent=recurrent,
        mtp_layers=mtp_layers,
        hidden=hidden,
        vocab=vocab,
        context_length=keys.integer("context_length"),
        rms_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        heads=keys.uniform("attention.head_count"),
        kv_heads=keys.uniform("attention.head_count_kv"),
        head_dim=keys.integer("attention.key_length"),
        rope_dims=keys.integer("rope.dimension_count"),
        rope_theta=keys.positive("rope.freq_base"),
        rope_scaling=_rope_scaling(keys),
        gdn_k_heads=keys.integer("ssm.group_count"),
        gdn_v_heads=keys.integer("ssm.time_step_rank"),
        gdn_head_dim=keys.integer("ssm.state_size"),
        conv_kernel=keys.integer("ssm.conv_kernel"),
        gdn_tiled=keys.boolean("ssm.v_head_reordered", architecture.gdn_tiled),
        experts=keys.integer("expert_count") if moe else 0,
        experts_used=keys.integer("expert_used_count") if moe else 0,
        expert_ffn=keys.integer("expert_feed_forward_length") if moe else 0,
        shared_ffn=keys.integer("expert_shared_feed_forward_length") if moe else 0,
        normalize_experts=keys.boolean("expert_weights_norm", True) or not architecture.optional_expert_norm,
        ffn=0 if moe else keys.uniform("feed_forward_length"),
        tied="output.weight" not in file.tensors,
        streams=read_streams(file, keys, hidden, vocab, recurrent) if architecture.streams else None,
    )
    _check_consistency(config, keys)
    return config


def _check_is_model(file: GGUFFile, architecture: str) -> None:
    """Raises TrigraphError for a file that says that it holds something else."""
    for key in (architecture, file.metadata.get("general.type")):
        if isinstance(key, str) and (why := _NO_MODEL.get(key)) is not None:
            drafter = ", and this one as its draft_model" if key == "dflash" else ""
            raise TrigraphError(f"{file.paths[0]}: holds {why} alone; give the file of the text model{drafter}")


def _name(file: GGUFFile) -> str:
    """What the file calls the model, or else its own name."""
    name = file.metadata.get("general.name")
    return name if isinstance(name, str) and name.strip() else file.paths[0].stem


def _blocks(keys: Keys, mtp_layers: int) -> int:
    """Layers of the trunk and the MTP head together."""
    blocks = keys.integer("block_count", least=1 + mtp_layers)
    if blocks > MAX_LAYERS:
        raise keys.error(
            "block_count", f"is {blocks}, expected at most {MAX_LAYERS}; the file is damaged, download it again"
        )
    return blocks


def _check_neutral(keys: Keys) -> None:
    for key, neutral in _NEUTRAL.items():
        value = keys.get(key, "a number or a string", (bool, int, float, str), neutral[0])
        if value not in neutral:
            raise keys.error(key, f"is {quote(value)}, which is not supported; use a file without it")


def _rope_scaling(keys: Keys) -> RopeScaling | None:
    kind = keys.get("rope.scaling.type", "a string", (str,), "none")
    factor = keys.positive("rope.scaling.factor", 1.0)
    if kind != "yarn":
        if kind not in ("none", "linear"):
            raise keys.error("rope.scaling.type", f"is {quote(kind)}, which is not supported; use a file without it")
        if factor != 1:
            raise keys.error("rope.scaling.factor", f"is {factor}, and only yarn is supported; use a file without it")
        return None
    if not 1 <= factor <= MOST_FACTOR:
        raise keys.error(
            "rope.scaling.factor", f"is {factor}, expected 1 to {MOST_FACTOR:.0f}; convert the model again"
        )
    context = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
    if factor == 1:
        return None
    return RopeScaling(
        factor,
        context,
        keys.positive("rope.scaling.attn_factor", 1.0),
        keys.positive("rope.scaling.yarn_beta_fast", 32.0),
        keys.positive("rope.scaling.yarn_beta_slow", 1.0),
    )


def _vocabulary_size(keys: Keys) -> int:
    tokens: list[str] = keys.get("tokens", "an array of strings", (list,), None)
    if not tokens:
        raise keys.error("tokens", "is empty; convert the model again")
    return len(tokens)


def _recurrent_layers(keys: Keys, blocks: int, mtp_layers: int) -> tuple[bool, ...]:
    """Which trunk layers are Gated DeltaNet: listed, those without key-value heads, or all but every n-th."""
    trunk, key = blocks - mtp_layers, "attention.recurrent_layers"
    listed = keys.array(key, "b", "an array of booleans")
    if listed is None and (heads := keys.listed("attention.head_count_kv")) is not None and not heads.all():
        listed, key = heads == 0, "attention.head_count_kv"
    if listed is None:
        interval = keys.integer("full_attention_interval", 4)
        return tuple((layer + 1) % interval != 0 for layer in range(trunk))
    if len(listed) not in (trunk, blocks):
        raise keys.error(
            key,
            f"has {len(listed)} entries, expected {blocks}, one for each layer; convert the model again",
        )
    return tuple(listed[:trunk].tolist())


def _check_consistency(config: ModelConfig, keys: Keys) -> None:
    def require(condition: bool, key: str, value: object, expected: str) -> None:
        if not condition:
            raise keys.error(key, f"is {value}, expected {expected}; convert the model again")

    for key, dim in (("attention.key_length", config.head_dim), ("ssm.state_size", config.gdn_head_dim)):
        require(dim % HEAD_STEP == 0, key, dim, f"a multiple of {HEAD_STEP}")
    require(
        config.heads % config.kv_heads == 0,
        "attention.head_count_kv",
        config.kv_heads,
        f"a divisor of the {config.heads} heads",
    )
    value_length = keys.integer("attention.value_length", config.head_dim)
    require(
        value_length == config.head_dim, "attention.value_length", value_length, f"{config.head_dim}, the key length"
    )
    require(
        config.rope_dims % 2 == 0 and config.rope_dims <= config.head_dim,
        "rope.dimension_count",
        config.rope_dims,
        f"an even number up to the head dimension {config.head_dim}",
    )
    require(config.conv_kernel == CONV_KERNEL, "ssm.conv_kernel", config.conv_kernel, str(CONV_KERNEL))
    require(
        config.gdn_v_heads % config.gdn_k_heads == 0,
        "ssm.time_step_rank",
        config.gdn_v_heads,
        f"a multiple of the {config.gdn_k_heads} key heads",
    )
    inner = keys.integer("ssm.inner_size", config.value_dim)
    require(inner == config.value_dim, "ssm.inner_size", inner, f"{config.value_dim}, time_step_rank * state_size")
    require(
        config.experts_used <= config.experts,
        "expert_used_count",
        config.experts_used,
        f"at most the {config.experts} experts",
    )
