"""Files as Ollama has written them, from the same weights as llama.cpp's converter writes them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np

from support.models.gguf_bytes import Entry, contents, gguf_bytes

Norms = Literal["converted", "trained"]
"""How the norms in the MTP head's layer are stored: as products take them, or 1 less."""

_HEAD = {
    "nextn.eh_proj.weight": "mtp.fc.weight",
    "nextn.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "mtp.norm.weight",
}
_TOWER = [
    (r"v\.patch_embd\.bias", "v.patch_embed.bias"),
    (r"v\.position_embd\.", "v.pos_embed."),
    (r"v\.post_ln\.", "v.merger.norm."),
    (r"mm\.0\.", "v.merger.linear_fc1."),
    (r"mm\.2\.", "v.merger.linear_fc2."),
    (r"\.ln(\d)\.", r".norm\1."),
    (r"\.ffn_up\.", ".mlp.linear_fc1."),
    (r"\.ffn_down\.", ".mlp.linear_fc2."),
]


def as_published(source: Path, target: Path, mmproj: Path | None = None, norms: Norms = "converted") -> Path:
    """One file with everything, as the models in Ollama's library are, from a converted model and its mmproj file."""
    pairs, tensors = contents(source)
    prefix = f"{pairs['general.architecture']}."
    heads, interval = pairs[prefix + "attention.head_count_kv"], pairs[prefix + "full_attention_interval"]
    head = pairs.pop(prefix + "nextn_predict_layers", 0)
    trunk = pairs[prefix + "block_count"] - head
    pairs[prefix + "block_count"] = trunk
    layers = range(trunk)
    pairs[prefix + "attention.head_count_kv"] = np.array([0 if (n + 1) % interval else heads for n in layers], "u4")
    del pairs["general.name"], pairs["tokenizer.ggml.bos_token_id"]
    pairs["general.parameter_count"] = np.uint64(123).item()
    pairs["tokenizer.ggml.eos_token_ids"] = np.array([pairs["tokenizer.ggml.eos_token_id"]] * 2, "i4")
    pairs["tokenizer.ggml.scores"] = np.arange(len(pairs["tokenizer.ggml.tokens"]), dtype="f4")
    pairs |= {"tokenizer.ggml.add_eos_token": False, "tokenizer.ggml.add_padding_token": False}
    if prefix != "qwen3next.":
        sections = pairs[prefix + "rope.dimension_sections"][:3]
        pairs |= {prefix + key: sections for key in ("rope.dimension_sections", "rope.mrope_section", "mrope_sections")}
        pairs |= {prefix + "rope.mrope_interleaved": True, prefix + "ssm.v_head_reordered": True}
    if prefix == "qwen35moe.":
        pairs |= {prefix + "feed_forward_length": 0, prefix + "norm_top_k_prob": True}
    found: dict[str, Entry] = {}
    for name, entry in tensors.items():
        if name.startswith(f"blk.{trunk}."):
            found |= _of_head(name.removeprefix(f"blk.{trunk}."), entry, norms)
        else:
            found[re.sub(r"\.ssm_dt\.bias$", ".ssm_dt", name)] = entry
    if mmproj is not None:
        _add_tower(pairs, found, mmproj, prefix)
    target.write_bytes(gguf_bytes(pairs, dict(sorted(found.items()))))
    return target


def as_imported(source: Path, target: Path) -> Path:
    """What `ollama create` writes today of the text model: llama.cpp's tensors, and keys of its own."""
    pairs, tensors = contents(source)
    prefix = f"{pairs['general.architecture']}."
    del pairs["general.name"]
    pairs |= {prefix + "norm_top_k_prob": True, "general.parameter_count": 123}
    target.write_bytes(gguf_bytes(pairs, dict(sorted(tensors.items()))))
    return target


def _of_head(role: str, entry: Entry, norms: Norms) -> dict[str, Entry]:
    """A tensor of the MTP block: in pieces if it is a stack of experts."""
    if (match := re.fullmatch(r"ffn_(gate|up|down)_exps\.weight", role)) is not None:
        *matrix, experts = entry.ne
        size = len(entry.data) // experts
        return {
            f"mtp.layers.0.mlp.experts.{n}.{match[1]}_proj.weight": Entry(
                tuple(matrix), entry.data[n * size : (n + 1) * size], entry.type
            )
            for n in range(experts)
        }
    if role.endswith("norm.weight") and (role in _HEAD or norms == "trained"):
        entry = replace(entry, data=(np.frombuffer(entry.data, "f4") - np.float32(1)).tobytes())
    return {_HEAD.get(role, f"mtp.layers.0.{role}"): entry}


def _add_tower(pairs: dict[str, Any], tensors: dict[str, Entry], mmproj: Path, prefix: str) -> None:
    """The tower of an mmproj file, with the keys that a text model's file has for it."""
    keys, tower = contents(mmproj)
    for key in ("block_count", "embedding_length", "attention.head_count", "patch_size", "spatial_merge_size"):
        pairs[f"{prefix}vision.{key}"] = keys[f"clip.vision.{key}"]
    pairs |= {f"{prefix}vision.{key}": keys[f"clip.vision.{key}"] for key in ("image_mean", "image_std")}
    pairs |= {f"{prefix}vision.num_channels": 3, f"{prefix}vision.temporal_patch_size": 2}
    pairs |= {f"{prefix}vision.shortest_edge": 65536, f"{prefix}vision.longest_edge": 16777216}
    pairs[f"{prefix}vision.deepstack_visual_indexes"] = np.zeros(0, "i4")
    pairs |= {f"{prefix}image_token_id": 1, f"{prefix}vision_start_token_id": 2, f"{prefix}vision_end_token_id": 3}
    frames = [tower.pop(f"v.patch_embd.weight{end}") for end in ("", ".1")]
    *_, channels, width = frames[0].ne
    rows = [np.frombuffer(frame.data, np.uint8).reshape(channels * width, -1) for frame in frames]
    tensors["v.patch_embed.weight"] = Entry(
        (16, 16, 2, channels * width), np.stack(rows, axis=1).tobytes(), frames[0].type
    )
    for name, entry in tower.items():
        if ".attn_qkv." in name:
            third = len(entry.data) // 3
            ne = (*entry.ne[:-1], entry.ne[-1] // 3)
            for n, part in enumerate(("attn_q", "attn_k", "attn_v")):
                data = entry.data[n * third : (n + 1) * third]
                tensors[name.replace("attn_qkv", part)] = Entry(ne, data, entry.type)
            continue
        tensors[reduce(lambda found, one: re.sub(one[0], one[1], found), _TOWER, name)] = entry
