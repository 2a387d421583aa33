"""Writes the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from support.models.gguf_bytes import Entry, contents, gguf_bytes
from support.models.random_gguf.geometry import PRESETS, Architecture, Geometry
from support.models.random_gguf.tensors import Item, tensors
from support.models.random_gguf.values import Array, draw, fitting_type
from support.models.random_gguf.vocabulary import add_vocabulary

Change = Callable[[dict[str, Any], dict[str, Entry]], None]


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
    edit: Callable[[Item], Iterable[Item]] = lambda item: [item],
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
    edit: what becomes of each tensor, such as none or several.
    """
    g = replace(PRESETS[preset], **geometry)
    pattern = list(recurrent) if recurrent is not None else [(layer + 1) % g.interval != 0 for layer in range(g.layers)]
    assert len(pattern) == g.layers
    path = Path(path)
    writer = GGUFWriter(path, architecture, split_max_tensors=split_tensors)
    writer.add_type("model")
    writer.add_name(f"random-{architecture}-{preset}")
    writer.add_file_type({"F32": 0, "F16": 1, "BF16": 32}.get(dtype, int(gguf.LlamaFileType.GUESSED)))
    _add_metadata(writer, architecture, g, bool(mtp), pattern if recurrent is not None else None)
    add_vocabulary(writer, g.vocab, "qwen2" if architecture == "qwen3next" else "qwen35")
    items = [edited for item in tensors(architecture, g, pattern, bool(mtp), tied) for edited in edit(item)]
    values = _values(np.random.default_rng(seed), items, dtype, types or {})
    for name, data, kind in _fused(values) if fused else values:
        if mtp == "only" and name.startswith("blk.") and not name.startswith(f"blk.{g.layers}."):
            continue
        writer.add_tensor(name, data, raw_dtype=None if kind in ("F32", "F16") else GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def changed(folder: Path, change: Change, architecture: Architecture = "qwen35", **options: Any) -> Path:
    """A random nano model whose metadata and tensors went through `change`."""
    pairs, tensors = contents(write_random(folder / "original.gguf", architecture, preset="nano", **options))
    change(pairs, tensors)
    path = folder / "changed.gguf"
    path.write_bytes(gguf_bytes(pairs, tensors))
    return path


def _values(
    rng: np.random.Generator, items: Iterable[Item], dtype: str, types: Mapping[str, str]
) -> Iterator[tuple[str, Array, str]]:
    """Name, values and type of each tensor."""
    for item in items:
        kind = "F32"
        if item.fill == "matrix":
            kind = next((found for glob, found in types.items() if fnmatch(item.name, glob)), dtype)
        kind = fitting_type(kind, item.shape[-1])
        yield item.name, draw(rng, item, kind), kind


def _fused(values: Iterable[tuple[str, Array, str]]) -> Iterator[tuple[str, Array, str]]:
    """The same with the gate and up matrices of the experts in one tensor."""
    gate: list[Array] = []
    for name, data, kind in values:
        if "ffn_gate_exps" in name:
            gate = [data]
        elif "ffn_up_exps" in name:
            yield name.replace("ffn_up_exps", "ffn_gate_up_exps"), np.concatenate([*gate, data], axis=1), kind
        else:
            yield name, data, kind


def _add_metadata(
    w: GGUFWriter,
    architecture: Architecture,
    g: Geometry,
    mtp: bool,
    recurrent: list[bool] | None,
) -> None:
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
