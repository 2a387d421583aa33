"""Small GGUF files with random weights and the exact structure of the three architectures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

Architecture = Literal["qwen35", "qwen35moe", "qwen3next"]
Array = npt.NDArray[Any]


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


def write_random(
    path: str | Path,
    architecture: Architecture,
    *,
    preset: str = "tiny",
    dtype: str = "F32",
    types: Mapping[str, str] | None = None,
    mtp: bool | Literal["only"] = True,
    tied: bool = False,
    fused: bool = False,
    recurrent: Sequence[bool] | None = None,
    split_tensors: int = 0,
    seed: int = 1,
    **geometry: Any,
) -> Path:
    """Write a model and return `path` (of a split file: the path of its first part).

    dtype: type of the matrices; vectors, routers and convolutions are F32. A type whose blocks do not fit a row gives
        way to Q8_0, or F32. Types that `gguf.quants` can quantise hold the random weights; the others (k-quants, IQ)
        are random blocks with about the same standard deviation.
    types: types of single tensors, by glob pattern over the name: {"*ffn_down*": "Q6_K"}.
    mtp: "only" writes the MTP block, embedding and output without the trunk. With one seed, a trunk-only and an
        MTP-only file hold the same weights as the whole file.
    fused: gate and up experts in one tensor, with the same weights.
    recurrent: writes attention.recurrent_layers; one entry for each trunk layer.
    split_tensors: at most so many tensors a part; 0 is a single file.
    geometry: fields of Geometry to change, such as layers=4.
    """
    g = replace(PRESETS[preset], **geometry)
    pattern = list(recurrent) if recurrent is not None else [(layer + 1) % g.interval != 0 for layer in range(g.layers)]
    assert len(pattern) == g.layers
    path = Path(path)
    writer = GGUFWriter(path, architecture, split_max_tensors=split_tensors)
    file_type = {"F32": 0, "F16": 1, "BF16": 32}.get(dtype, int(gguf.LlamaFileType.GUESSED))
    _add_metadata(
        writer,
        architecture,
        g,
        f"random-{architecture}-{preset}",
        file_type,
        bool(mtp),
        pattern if recurrent is not None else None,
    )
    _add_vocabulary(writer, g.vocab, "qwen2" if architecture == "qwen3next" else "qwen35")

    rng = np.random.default_rng(seed)
    pending: list[Array] = []
    for item in _tensors(architecture, g, pattern, bool(mtp), tied):
        kind = "F32"
        if item.fill == "matrix":
            kind = next((found for glob, found in (types or {}).items() if fnmatch(item.name, glob)), dtype)
        kind = fitting_type(kind, item.shape[-1])
        data = _draw(rng, item, kind)
        name = item.name
        if fused and "ffn_gate_exps" in name:
            pending = [data]
            continue
        if fused and "ffn_up_exps" in name:
            name, data = name.replace("ffn_up_exps", "ffn_gate_up_exps"), np.concatenate([*pending, data], axis=1)
        if mtp == "only" and name.startswith("blk.") and not name.startswith(f"blk.{g.layers}."):
            continue
        writer.add_tensor(name, data, raw_dtype=None if kind in ("F32", "F16") else GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def fitting_type(kind: str, row: int) -> str:
    """`kind`, or the type that stands in for it when its blocks do not fit a row."""
    for candidate in (kind, "Q8_0"):
        if row % GGML_QUANT_SIZES[GGMLQuantizationType[candidate]][0] == 0:
            return candidate
    return "F32"


@dataclass(frozen=True)
class _Item:
    name: str
    shape: tuple[int, ...]
    fill: Literal["matrix", "float", "norm", "dt", "a"]
    std: float = 0.0


def _tensors(architecture: Architecture, g: Geometry, pattern: list[bool], mtp: bool, tied: bool) -> Iterator[_Item]:
    hidden, heads, v_heads = g.hidden, g.heads * g.head_dim, g.v_heads
    key_dim, value_dim = g.k_heads * g.gdn_dim, g.v_heads * g.gdn_dim

    def matrix(name: str, *shape: int, std: float | None = None) -> _Item:
        return _Item(f"{name}.weight", shape, "matrix", shape[-1] ** -0.5 if std is None else std)

    def norm(name: str, size: int) -> _Item:
        return _Item(f"{name}.weight", (size,), "norm")

    def attention(block: str) -> Iterator[_Item]:
        yield matrix(f"{block}.attn_q", 2 * heads, hidden)
        yield matrix(f"{block}.attn_k", g.kv_heads * g.head_dim, hidden)
        yield matrix(f"{block}.attn_v", g.kv_heads * g.head_dim, hidden)
        yield matrix(f"{block}.attn_output", hidden, heads)
        yield norm(f"{block}.attn_q_norm", g.head_dim)
        yield norm(f"{block}.attn_k_norm", g.head_dim)

    def gdn(block: str) -> Iterator[_Item]:
        yield matrix(f"{block}.attn_qkv", 2 * key_dim + value_dim, hidden)
        yield matrix(f"{block}.attn_gate", value_dim, hidden)
        yield _Item(f"{block}.ssm_conv1d.weight", (2 * key_dim + value_dim, 4), "float", 0.5)
        yield _Item(f"{block}.ssm_dt.bias", (v_heads,), "dt")
        yield _Item(f"{block}.ssm_a", (v_heads,), "a")
        if architecture == "qwen3next":
            yield matrix(f"{block}.ssm_ba", 2 * v_heads, hidden)
        else:
            yield matrix(f"{block}.ssm_beta", v_heads, hidden)
            yield matrix(f"{block}.ssm_alpha", v_heads, hidden)
        yield norm(f"{block}.ssm_norm", g.gdn_dim)
        yield matrix(f"{block}.ssm_out", hidden, value_dim)

    def feed_forward(block: str) -> Iterator[_Item]:
        if architecture == "qwen35":
            yield matrix(f"{block}.ffn_gate", g.ffn, hidden)
            yield matrix(f"{block}.ffn_up", g.ffn, hidden)
            yield matrix(f"{block}.ffn_down", hidden, g.ffn)
            return
        yield _Item(f"{block}.ffn_gate_inp.weight", (g.experts, hidden), "float", 2 * hidden**-0.5)
        yield matrix(f"{block}.ffn_gate_exps", g.experts, g.expert_ffn, hidden)
        yield matrix(f"{block}.ffn_up_exps", g.experts, g.expert_ffn, hidden)
        yield matrix(f"{block}.ffn_down_exps", g.experts, hidden, g.expert_ffn)
        yield _Item(f"{block}.ffn_gate_inp_shexp.weight", (hidden,), "float", hidden**-0.5)
        yield matrix(f"{block}.ffn_gate_shexp", g.shared_ffn, hidden)
        yield matrix(f"{block}.ffn_up_shexp", g.shared_ffn, hidden)
        yield matrix(f"{block}.ffn_down_shexp", hidden, g.shared_ffn)

    yield matrix("token_embd", g.vocab, hidden, std=1.0)
    yield norm("output_norm", hidden)
    if not tied:
        yield matrix("output", g.vocab, hidden, std=2.5 * hidden**-0.5)
    for layer, recurrent in enumerate(pattern + [False] * mtp):
        block = f"blk.{layer}"
        yield norm(f"{block}.attn_norm", hidden)
        yield norm(f"{block}.post_attention_norm", hidden)
        yield from gdn(block) if recurrent else attention(block)
        yield from feed_forward(block)
    if mtp:
        block = f"blk.{g.layers}.nextn"
        yield matrix(f"{block}.eh_proj", hidden, 2 * hidden)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            yield norm(f"{block}.{name}", hidden)


def _draw(rng: np.random.Generator, item: _Item, kind: str) -> Array:
    if item.fill == "norm":
        return (1 + 0.1 * rng.standard_normal(item.shape)).astype(np.float32)
    if item.fill == "a":  # -exp(A_log)
        return (-rng.uniform(1, 16, item.shape)).astype(np.float32)
    if item.fill == "dt":  # softplus(dt) is log-uniform in [0.001, 0.1]
        step = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), item.shape))
        return (step + np.log(-np.expm1(-step))).astype(np.float32)
    if kind in _SCALES:
        return random_blocks(rng, item.shape, kind, item.std)
    values = rng.standard_normal(item.shape, dtype=np.float32)
    values *= np.float32(item.std)
    if kind == "F32":
        return values
    if kind == "F16":
        return values.astype(np.float16)
    if kind == "BF16":  # truncated, as in the files that the oracle runs used
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return gguf.quants.quantize(values, GGMLQuantizationType[kind])


# Types that gguf.quants cannot quantise: byte offsets of the block's float16 scale and, if it has one, of the float16
# factor of its minimum, and the ratio of the two that puts the mean of random blocks at zero.
_SCALES: dict[str, tuple[int, int | None, float]] = {
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0),
    "IQ2_XXS": (0, None, 0),
    "IQ2_XS": (0, None, 0),
    "IQ2_S": (0, None, 0),
    "IQ3_XXS": (0, None, 0),
    "IQ3_S": (0, None, 0),
    "IQ1_S": (0, None, 0),
    "IQ4_NL": (0, None, 0),
    "IQ4_XS": (0, None, 0),
}


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...], kind: str, std: float) -> npt.NDArray[np.uint8]:
    """Random blocks of a type in `_SCALES` with about the given standard deviation: uint8 [..., row bytes]."""
    quant = GGMLQuantizationType[kind]
    block, block_bytes = GGML_QUANT_SIZES[quant]
    scale_at, minimum_at, ratio = _SCALES[kind]
    data = rng.integers(0, 256, (int(np.prod(shape)) // block, block_bytes), dtype=np.uint8)

    def set_scales(rows: npt.NDArray[np.uint8], scale: Array) -> None:
        rows[:, scale_at : scale_at + 2] = scale.astype(np.float16).reshape(-1, 1).view(np.uint8)
        if minimum_at is not None:
            rows[:, minimum_at : minimum_at + 2] = (scale * ratio).astype(np.float16).reshape(-1, 1).view(np.uint8)

    sample = data[:256].copy()
    set_scales(sample, np.ones(len(sample)))
    unit = float(gguf.quants.dequantize(sample, quant).std())
    set_scales(data, std / unit * rng.uniform(0.8, 1.2, len(data)))
    return data.reshape(*shape[:-1], shape[-1] // block * block_bytes)


def _add_metadata(
    w: GGUFWriter,
    architecture: Architecture,
    g: Geometry,
    name: str,
    file_type: int,
    mtp: bool,
    recurrent: list[bool] | None,
) -> None:
    w.add_type("model")
    w.add_name(name)
    w.add_file_type(file_type)
    w.add_quantization_version(2)
    w.add_block_count(g.layers + mtp)
    w.add_context_length(g.context)
    w.add_embedding_length(g.hidden)
    w.add_head_count(g.heads)
    w.add_head_count_kv(g.kv_heads)
    w.add_key_length(g.head_dim)
    w.add_value_length(g.head_dim)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(g.rope_theta)
    w.add_rope_dimension_count(g.rope_dims)
    if architecture != "qwen3next":
        w.add_rope_dimension_sections(g.rope_sections)
    if architecture != "qwen35":
        w.add_expert_count(g.experts)
        w.add_expert_used_count(g.experts_used)
        w.add_expert_feed_forward_length(g.expert_ffn)
        w.add_expert_shared_feed_forward_length(g.shared_ffn)
    if architecture != "qwen35moe":
        w.add_feed_forward_length(g.ffn)
    w.add_ssm_conv_kernel(4)
    w.add_ssm_state_size(g.gdn_dim)
    w.add_ssm_group_count(g.k_heads)
    w.add_ssm_time_step_rank(g.v_heads)
    w.add_ssm_inner_size(g.v_heads * g.gdn_dim)
    w.add_full_attention_interval(g.interval)
    if recurrent is not None:
        w.add_array(f"{architecture}.attention.recurrent_layers", recurrent + [False] * mtp)
    if mtp:
        w.add_nextn_predict_layers(1)


# Text that the vocabulary's merges are learnt from.
_TEXT = (
    "the quick brown fox jumps over the lazy dog and then the dog runs after the fox in the field near the river. "
    "once upon a time there was a small model that could read every file and write every graph. "
    "def main(): return sum(x for x in range(10)) # the answer is that this is only a test of the tokenizer. "
    "it is what it is, and what it was before it was not what it will be after the next token is drawn. "
) * 3
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|pad|>")
_MAX_MERGED = 456


def _add_vocabulary(w: GGUFWriter, size: int, pre: str) -> None:
    """Byte-level BPE: 256 bytes, merges learnt from _TEXT, unused entries, special tokens at the end."""
    plain = size - len(_SPECIAL)
    tokens, merges = _learn_merges(min(plain, _MAX_MERGED))
    unused = [f"[unused{index}]" for index in range(len(tokens), plain)]
    ids = {text: plain + index for index, text in enumerate(_SPECIAL)}
    kinds = gguf.TokenType
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list([*tokens, *unused, *_SPECIAL])
    w.add_token_types([kinds.NORMAL] * len(tokens) + [kinds.UNUSED] * len(unused) + [kinds.CONTROL] * len(_SPECIAL))
    w.add_token_merges(merges)
    w.add_eos_token_id(ids["<|im_end|>"])
    w.add_pad_token_id(ids["<|endoftext|>"])
    w.add_bos_token_id(ids["<|endoftext|>"])
    w.add_add_bos_token(False)


def _byte_letters() -> list[str]:
    """GPT-2's printable stand-in for each byte."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]


def _learn_merges(size: int) -> tuple[list[str], list[str]]:
    letters = _byte_letters()
    words: dict[tuple[str, ...], int] = {}
    for index, text in enumerate(_TEXT.split(" ")):
        if text:
            word = tuple(letters[byte] for byte in ((" " if index else "") + text).encode())
            words[word] = words.get(word, 0) + 1
    tokens, merges = list(letters), []
    while len(tokens) < size:
        counts: dict[tuple[str, str], int] = {}
        for word, count in words.items():
            for pair in pairwise(word):
                counts[pair] = counts.get(pair, 0) + count
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(" ".join(best))
        if "".join(best) not in tokens:
            tokens.append("".join(best))
        merged: dict[tuple[str, ...], int] = {}
        for word, count in words.items():
            joined = _join(word, best)
            merged[joined] = merged.get(joined, 0) + count
        words = merged
    return tokens, merges


def _join(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    at = 0
    while at < len(word):
        width = 2 if word[at : at + 2] == pair else 1
        out.append("".join(word[at : at + width]))
        at += width
    return tuple(out)
