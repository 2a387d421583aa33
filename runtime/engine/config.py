"""How a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from trigraph.exporter import ExportOptions
from trigraph.models.checks import check_keywords
from trigraph.models.errors import TrigraphError, quote

DEFAULT_WAITING = 1024
REPACK = ("auto", "on", "off")
"""When weights are repacked: in the background where memory allows, when the model is loaded, or never."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What `load` can be told. None leaves a choice to the engine; sizes of memory are in bytes."""

    device: str = "cpu"
    """"cpu", "cuda": as few GPUs as hold the model, "cuda:N": GPU number N, "auto": "cuda" where there is one, or
    "webgpu": other GPUs, whose texts may be others. "cuda:0,cuda:1": the first layers on one GPU, those that follow on
    the next one."""
    experts: str = "gpu"
    """Where routed experts are computed when the device is a GPU: "gpu" or "cpu"."""
    gpu_memory: int | Sequence[int] | None = None
    """Bytes that each GPU may take, or by GPU, for weights, state and what steps need. The CPU computes routed experts
    that do not fit, and layers if all else does not. None: what is free."""
    split: Sequence[float] | None = None
    """How many of the layers each of several GPUs gets, in proportion. None: each as many as it has memory for."""
    repack: str = "auto"
    """When AVX2 and AVX-512 get copies of Q4_K to Q6_K, IQ3 and IQ2 weights that they read faster, in memory of their
    own: one of REPACK."""
    threads: int | None = None
    """Threads of a step, at most the logical cores. None: the physical ones; one for a small model."""
    context: int | None = None
    """Most tokens of a sequence. 0: the model's own. None: that, or a half, a quarter and so on of it, as far as the
    KV pages of a full one fit into the memory that they may take; at least 32,768, or the model's own if that is less.
    """
    context_by_memory: bool = True
    """Whether a context of None may be more than 32,768: not where engines must have the same one."""
    sequences: int | None = None
    """Requests that are computed at once. None: up to 8."""
    kv_memory: int | None = None
    """KV pages. None: half of what the weights leave of memory, filled as it is used; on a GPU, which takes it at once,
    enough for the sequences."""
    checkpoint_memory: int | None = None
    """Recurrent states that the prefix cache keeps. None: half of kv_memory; if that is not given either, or is more, a
    quarter of what the weights leave, and on a GPU as above."""
    memory_share: float = 1.0
    """The part of free memory that counts as such, where several engines share it."""
    image_memory: int = 256 << 20
    """Rows of images that are kept for prompts with the same images; one of 1024 tokens takes 8 to 20 MiB."""
    cache_dir: str | Path | None = None
    """A folder where checkpoints of the prefix cache outlive the program."""
    cache_size: int | None = None
    """The files in it. None: 16 GiB, or half of what is free."""
    chunk: int | None = None
    """Tokens of prompts in one step. None: 512; on a GPU 1,024, or up to 4,096 for a mixture of experts."""
    prefill_ms: float | None = None
    """Milliseconds that such a step may hold up requests that decode. None: a round of theirs; longer while these are
    few."""
    max_pending: int | None = None
    """Most tokens of a request in one verify, 8 to 256, of which a GPU takes at most 29. None: 8. More read known
    tokens faster, as receipts and scores have them; each takes a row of logits, and a row in each recurrent state."""
    max_waiting: int = DEFAULT_WAITING
    """Requests that may wait for others; more are refused."""
    image_tokens: int = 1024
    """Most tokens of an image, 64 to 16384: larger ones are made smaller."""
    speculation: bool = True
    """Whether the draft graph is loaded."""
    draft_model: str | Path | None = None
    """A block drafter (DFlash, DFlash2, DSpark) for a `.gguf` file, beside its MTP head: a file, USER/REPO:QUANT, or
    "dflash" or "dspark" for the file of that kind beside the model."""
    options: ExportOptions | None = None
    """How a `.gguf` file is exported."""


class Settings(TypedDict, total=False):
    """The fields of EngineConfig, as keywords of `load`."""

    device: str
    experts: str
    gpu_memory: int | Sequence[int] | None
    split: Sequence[float] | None
    repack: str
    threads: int | None
    context: int | None
    context_by_memory: bool
    sequences: int | None
    kv_memory: int | None
    checkpoint_memory: int | None
    memory_share: float
    image_memory: int
    cache_dir: str | Path | None
    cache_size: int | None
    chunk: int | None
    prefill_ms: float | None
    max_pending: int | None
    max_waiting: int
    image_tokens: int
    speculation: bool
    draft_model: str | Path | None
    options: ExportOptions | None


# What other engines call them.
_FOREIGN = {
    **dict.fromkeys(("n_ctx", "num_ctx", "ctx_size", "max_model_len", "max_seq_len"), "use context"),
    **dict.fromkeys(("n_threads", "num_thread", "num_threads", "n_threads_batch"), "use threads"),
    **dict.fromkeys(
        ("n_gpu_layers", "num_gpu", "device_map", "gpu"), 'use device="cuda", and gpu_memory for its limit'
    ),
    **dict.fromkeys(("gpu_memory_utilization", "max_memory"), "use gpu_memory, in bytes"),
    **dict.fromkeys(("n_parallel", "max_num_seqs", "max_sequences", "n_seq_max"), "use sequences"),
    **dict.fromkeys(
        ("n_batch", "n_ubatch", "max_num_batched_tokens"), "not needed; chunk is the tokens of prompts in a step"
    ),
    **dict.fromkeys(("model", "model_path", "model_id", "repo_id", "filename"), "the model is the first argument"),
    **dict.fromkeys(
        ("speculative_config", "num_speculative_tokens"),
        "drafts need no setting; draft_model names a block drafter, and speculation=False turns drafts off",
    ),
    **dict.fromkeys(
        ("kv_type", "type_k", "type_v", "cache_type_k", "kv_cache_dtype"), 'use options=ExportOptions(kv_type="q8_0")'
    ),
    **dict.fromkeys(("mmproj", "clip_model_path", "mtp"), "use options=ExportOptions(mmproj=..., mtp=...)"),
    **dict.fromkeys(
        ("temperature", "max_tokens", "seed", "top_p", "top_k"), "requests have it: engine.generate(prompt, ...)"
    ),
    **dict.fromkeys(
        ("tensor_parallel_size", "split_mode", "main_gpu"), 'use device="cuda:0,cuda:1", or "cuda:1" for the second GPU'
    ),
    "tensor_split": 'use split, with device="cuda:0,cuda:1"',
    **dict.fromkeys(("dtype", "quantization", "torch_dtype", "load_in_4bit"), "the file says so; choose another file"),
    **dict.fromkeys(("use_mmap", "use_mlock", "flash_attn", "verbose"), "not needed"),
}


def configured(config: EngineConfig | None, settings: Mapping[str, Any]) -> EngineConfig:
    """`config` with `settings` in place of its own. Raises TrigraphError for an unknown one, which it explains."""
    if not isinstance(config, EngineConfig | None):
        raise TrigraphError(f"config is {quote(config)}; it must be an EngineConfig, and keywords such as context=8192")
    check_keywords("load", settings, Settings.__annotations__, _FOREIGN)
    return replace(config or EngineConfig(), **settings)
