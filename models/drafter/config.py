"""Hyperparameters of a block drafter, from the metadata of its GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from trigraph.models.config import HEAD_STEP, MAX_LAYERS, ModelConfig
from trigraph.models.drafter.tensors import MARKOV, SELECTOR
from trigraph.models.errors import TrigraphError, quote
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.keys import MAX_SIZE, Keys

ARCHITECTURE = "dflash"
KIND_NAMES = {"dflash": "DFlash", "dflash2": "DFlash2", "dspark": "DSpark"}
KINDS = tuple(KIND_NAMES)
MAX_BLOCK = 64
MAX_CANDIDATES = 256
CANDIDATES = 32
"""Candidates of a row, where the file does not say how many."""
MAX_KERNEL = 16

# What forks of llama.cpp call the architecture.
_FORKS = ("dflash-draft", "dflash_draft")
# Keys that change the mathematics in a way that is not implemented, with the values that do not.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "hyper_connection.count": (0, 1),
    "attention.value_scale": (1.0,),
    "embedding_scale": (1.0,),
    "rope.scaling.type": ("none",),
    "expert_count": (0,),
}


@dataclass(frozen=True)
class BlockDrafterConfig:
    """Geometry and constants. Widths and head dimensions count elements."""

    name: str
    kind: str
    """One of KINDS. In dflash, a row is drafted by itself. In dspark, a candidate also has a score after each candidate
    of the row before; in dflash2, that score depends on the row, too, and rows of a block are convolved."""
    block: int
    """Most rows of a sequence in a draft: the known token, then masks."""
    mask: int
    """Token id of the rows after the known token."""
    from_anchor: bool
    """Whether row j drafts the position after its own; otherwise it drafts its own, and the first row, which has the
    known token, drafts nothing."""
    candidates: int
    """Tokens that a row of a draft offers."""
    taps: tuple[int, ...]
    """Layers of the model: the drafter reads the residual stream that enters each. The number of all layers stands for
    the stream that leaves the last one."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_theta: float
    rms_eps: float
    ffn: int
    window: int
    """Positions that a row of a sliding layer sees, its own included; 0 without such layers."""
    sliding: tuple[bool, ...]
    """For each layer whether it slides."""
    causal: tuple[bool, ...]
    """For each layer whether a row sees the rows of the block up to its own only; otherwise it sees all of them."""
    conv_kernel: int
    """Rows that a convolution adds up, a row and those before it in the block; 0 unless it is dflash2."""
    conv_group: int
    """Channels that share a coefficient of the convolutions."""
    rank: int
    """Width of the tables that score a token after another; 0 in dflash, which has none."""
    logit_scale: float
    logit_cap: float
    """Logits are capped softly to this; 0: not."""

    @property
    def most_drafts(self) -> int:
        """Tokens that a block of all rows drafts."""
        return self.block if self.from_anchor else self.block - 1

    @property
    def predecessors(self) -> int:
        """How many tokens of the row before the edges of a row tell apart."""
        return 1 if self.kind == "dflash" else self.candidates

    def first_drafts(self, sequences: int) -> range:
        """The row of each sequence's first draft, where all blocks are whole."""
        return range(not self.from_anchor, sequences * self.block, self.block)

    def as_model(self, target: ModelConfig) -> ModelConfig:
        """The drafter's layers as those of a model: full attention and dense feed-forward."""
        return replace(
            target,
            name=self.name,
            trunk_layers=self.layers,
            recurrent=(False,) * self.layers,
            mtp_layers=0,
            rms_eps=self.rms_eps,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rope_dims=self.rope_dims,
            rope_theta=self.rope_theta,
            rope_scaling=None,
            experts=0,
            ffn=self.ffn,
            streams=None,
        )


def is_drafter(file: GGUFFile) -> bool:
    """Whether a file says that it is a block drafter."""
    return file.metadata.get("general.architecture") in (ARCHITECTURE, *_FORKS)


def read_drafter_config(file: GGUFFile) -> BlockDrafterConfig:
    """The configuration in a drafter's metadata.

    Raises TrigraphError, naming key and value, for a missing or wrong-typed key, another kind of file, and values that
    contradict each other or ask for something that is not implemented.
    """
    keys = _known_keys(file)
    layers, head_dim = keys.integer("block_count"), keys.integer("attention.key_length")
    if layers > MAX_LAYERS:
        raise keys.error(
            "block_count", f"is {layers}, expected at most {MAX_LAYERS}; the file is damaged, download it again"
        )
    kind = _kind(file)
    window, sliding = _sliding(keys, layers)
    paired = kind == "dflash2"
    config = BlockDrafterConfig(
        name=str(Keys(file, "general.").get("name", "a string", (str,), file.paths[0].stem)),
        kind=kind,
        block=keys.integer("block_size"),
        mask=Keys(file, "tokenizer.ggml.").integer("mask_token_id", least=0),
        from_anchor=kind == "dspark" and keys.boolean("sample_from_anchor", True),
        candidates=keys.integer("selector_top_k") if paired else CANDIDATES,
        taps=_taps(keys),
        layers=layers,
        hidden=keys.integer("embedding_length"),
        heads=keys.uniform("attention.head_count"),
        kv_heads=keys.uniform("attention.head_count_kv"),
        head_dim=head_dim,
        rope_dims=keys.integer("rope.dimension_count", head_dim),
        rope_theta=keys.positive("rope.freq_base"),
        rms_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        ffn=keys.uniform("feed_forward_length"),
        window=window,
        sliding=sliding,
        causal=_causal(keys, kind, sliding),
        conv_kernel=keys.integer("conv_kernel_size") if paired else 0,
        conv_group=keys.integer("conv_group_size") if paired else 0,
        rank=keys.integer("selector_rank") if paired else _markov_rank(file) if kind == "dspark" else 0,
        logit_scale=_optional(keys, "logit_scale") or 1.0,
        logit_cap=_optional(keys, "final_logit_softcapping"),
    )
    _check_consistency(config, keys)
    return config


def _known_keys(file: GGUFFile) -> Keys:
    """The keys of a drafter's file whose mathematics is implemented."""
    general, keys = Keys(file, "general."), Keys(file, f"{ARCHITECTURE}.")
    architecture = general.get("architecture", "a string", (str,), None)
    if architecture in _FORKS:
        raise general.error(
            "architecture",
            f"is {quote(architecture)}, which forks write; convert the drafter with llama.cpp, which calls it "
            f"'{ARCHITECTURE}'",
        )
    if architecture != ARCHITECTURE:
        raise general.error(
            "architecture", f"is {quote(architecture)}, expected '{ARCHITECTURE}'; give the file of a block drafter"
        )
    for key, neutral in _NEUTRAL.items():
        value = keys.get(key, "a number or a string", (bool, int, float, str), neutral[0])
        if value not in neutral:
            raise keys.error(key, f"is {quote(value)}, which is not supported; use a drafter of a Qwen model")
    return keys


def _taps(keys: Keys) -> tuple[int, ...]:
    taps = keys.array("target_layers", "iu", "an array of integers")
    if taps is None or not 0 < len(taps) <= MAX_LAYERS:
        raise keys.error(
            "target_layers", "is missing or empty; convert the drafter again, with its target model at hand"
        )
    return tuple(map(int, taps))


def _sliding(keys: Keys, layers: int) -> tuple[int, tuple[bool, ...]]:
    """The window, and for each layer whether it has it."""
    pattern = keys.array("attention.sliding_window_pattern", "b", "an array of booleans")
    if not keys.has("attention.sliding_window") or keys.integer("attention.sliding_window", least=0) == 0:
        return 0, (False,) * layers
    window = keys.integer("attention.sliding_window")
    sliding = (False,) * layers if pattern is None else tuple(map(bool, pattern))
    if len(sliding) != layers:
        raise keys.error(
            "attention.sliding_window_pattern",
            f"has {len(sliding)} entries, expected {layers}, one for each layer; convert the drafter again",
        )
    return window if any(sliding) else 0, sliding


def _causal(keys: Keys, kind: str, sliding: tuple[bool, ...]) -> tuple[bool, ...]:
    """For each layer whether it is causal: in dflash files that do not say, the sliding layers are."""
    if keys.has("attention.causal") or kind != "dflash":
        return (keys.boolean("attention.causal", False),) * len(sliding)
    return sliding


def _optional(keys: Keys, key: str) -> float:
    """A positive number, or 0 where the file has none."""
    return keys.positive(key) if keys.metadata.get(keys.prefix + key) not in (None, 0) else 0.0


def _kind(file: GGUFFile) -> str:
    """The kind, by tensors that no other kind has."""
    for kind, own in (("dflash2", SELECTOR), ("dspark", MARKOV)):
        if any(name in file.tensors for name in own):
            return kind
    return "dflash"


def _markov_rank(file: GGUFFile) -> int:
    """The rank of the tables of dspark, by their shape: files do not state it."""
    return next(file.tensors[name].shape[-1] for name in MARKOV if name in file.tensors)


def _check_consistency(config: BlockDrafterConfig, keys: Keys) -> None:
    def require(condition: bool, key: str, value: object, expected: str) -> None:
        if not condition:
            raise keys.error(key, f"is {value}, expected {expected}; convert the drafter again")

    heads, dim = config.heads, config.head_dim
    require(heads % config.kv_heads == 0, "attention.head_count_kv", config.kv_heads, f"a divisor of the {heads} heads")
    require(dim % HEAD_STEP == 0, "attention.key_length", dim, f"a multiple of {HEAD_STEP}")
    value_length = keys.integer("attention.value_length", dim)
    require(value_length == dim, "attention.value_length", value_length, f"{dim}, the key length")
    even = config.rope_dims % 2 == 0 and config.rope_dims <= dim
    require(even, "rope.dimension_count", config.rope_dims, f"an even number up to the head dimension {dim}")
    sections = keys.listed("rope.dimension_sections")
    if sections is not None:
        time = not sections[1:].any() and sections[0] in (0, config.rope_dims // 2)
        require(time, "rope.dimension_sections", quote(sections.tolist()), "pairs of the time axis alone")
    least = 1 if config.from_anchor else 2
    require(least <= config.block <= MAX_BLOCK, "block_size", config.block, f"{least} to {MAX_BLOCK}")
    top = config.candidates
    require(top <= MAX_CANDIDATES, "selector_top_k", top, f"at most {MAX_CANDIDATES}")
    if config.kind == "dflash2":
        require(config.conv_kernel <= MAX_KERNEL, "conv_kernel_size", config.conv_kernel, f"at most {MAX_KERNEL}")
        divides = config.hidden % config.conv_group == 0
        require(divides, "conv_group_size", config.conv_group, f"a divisor of the width {config.hidden}")


def check_drafter(
    config: BlockDrafterConfig, target: ModelConfig, require: Callable[[bool, str, object, str], None]
) -> None:
    """Checks a configuration from a manifest, which may say anything: `require(condition, key, value, expected)` raises
    where the condition is false.
    """
    require(config.kind in KINDS, "drafter.kind", config.kind, f"one of {', '.join(KINDS)}")
    for name, least, most in (
        ("block", 1 if config.from_anchor else 2, MAX_BLOCK),
        ("mask", 0, target.vocab - 1),
        ("candidates", 1, min(MAX_CANDIDATES, target.vocab)),
        ("layers", 1, MAX_LAYERS),
        ("hidden", target.hidden, target.hidden),
        *((name, 1, MAX_SIZE) for name in ("heads", "kv_heads", "head_dim", "rope_dims", "ffn")),
        ("window", int(any(config.sliding)), MAX_SIZE),
    ):
        value = getattr(config, name)
        require(least <= value <= most, f"drafter.{name}", value, f"{least} to {most}")
    require(len(config.sliding) == config.layers, "drafter.sliding", len(config.sliding), f"{config.layers} entries")


def check_target(config: BlockDrafterConfig, target: ModelConfig, path: object) -> None:
    """Raises TrigraphError for a drafter of another model than `target`, and for a model that can have no drafter."""
    if target.streams is not None:
        raise TrigraphError(
            f"{path}: drafters of models with residual streams ({target.architecture}) are not supported; leave it out"
        )
    last = target.trunk_layers
    foreign = next((tap for tap in config.taps if not 0 <= tap <= last), None)
    other = None if config.hidden == target.hidden else config.hidden
    for key, value, expected in (
        ("embedding_length", other, f"{target.hidden}, the model's"),
        ("target_layers", foreign, f"layers of the model, from 0 to {last}"),
    ):
        if value is not None:
            raise TrigraphError(
                f"{path}: key '{ARCHITECTURE}.{key}' says {value}, expected {expected}; give the drafter of this model"
            )
