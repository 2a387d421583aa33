"""Converts a trained folder (config.json, model.safetensors, tokenizer.json) into a GGUF file.

    python -m tiny_model.convert FOLDER OUT.gguf [--type F32|Q8_0]

transformers' names and layout become llama.cpp's: norms are stored as 1 + w (all but the GDN output norm), `A_log` as
-exp(A_log), and the GDN value heads are reordered so that head h reads key head h % k_heads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from trigraph.models import names

Weights = NDArray[np.float32]
Tensors = Mapping[str, Weights]

# Two-dimensional, but kept in F32: small, and sensitive
_KEEP_F32 = (names.SSM_CONV1D, names.FFN_GATE_INP, names.SSM_ALPHA, names.SSM_BETA)


class ValueHeads:
    """The order of the GDN value heads: grouped by key head in transformers, dealt out round by round in GGUF."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        group = value_heads // key_heads
        self.order = np.array([(head % key_heads) * group + head // key_heads for head in range(value_heads)])
        self.dim = config["linear_value_head_dim"]
        self.qk_rows = 2 * key_heads * config["linear_key_head_dim"]

    def rows(self, weights: Weights) -> Weights:
        """Reorders rows; a head owns an equal share of them."""
        by_head = weights.reshape(len(self.order), -1, *weights.shape[1:])
        reordered: Weights = by_head[self.order].reshape(weights.shape)
        return reordered

    def value_rows(self, weights: Weights) -> Weights:
        """Reorders the value part of q|k|v rows."""
        return np.concatenate([weights[: self.qk_rows], self.rows(weights[self.qk_rows :])])


def convert(folder: Path, out: Path, type_name: str) -> None:
    """Write `out`; matrices get ggml type `type_name`, everything else F32."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(out, "qwen35moe")
    _add_metadata(writer, config)
    _add_tokenizer(writer, tokenizer)
    quantised = gguf.GGMLQuantizationType[type_name]
    for name, weights in _tensors(load_file(folder / "model.safetensors"), config):
        data = np.ascontiguousarray(weights, np.float32)
        if type_name == "F32" or data.ndim < 2 or names.role(name) in _KEEP_F32:
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, gguf.quants.quantize(data, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    rope = config["rope_parameters"]
    writer.add_name("tiny-qwen35moe-mtp")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"] + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Mapping[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(vocabulary["<|endoftext|>"])


def _tensors(source: Tensors, config: Mapping[str, Any]) -> Iterator[tuple[str, Weights]]:
    layers, heads = config["num_hidden_layers"], ValueHeads(config)
    yield names.TOKEN_EMBD, source["model.embed_tokens.weight"]
    yield names.OUTPUT_NORM, source["model.norm.weight"] + 1
    for layer in range(layers):
        yield from _block(source, f"model.layers.{layer}", layer, heads)
    yield from _block(source, "mtp.layers.0", layers, heads)
    yield names.in_block(layers, names.NEXTN_EH_PROJ), source["mtp.fc.weight"]
    yield names.in_block(layers, names.NEXTN_ENORM), source["mtp.pre_fc_norm_embedding.weight"] + 1
    yield names.in_block(layers, names.NEXTN_HNORM), source["mtp.pre_fc_norm_hidden.weight"] + 1
    yield names.in_block(layers, names.NEXTN_SHARED_HEAD_NORM), source["mtp.norm.weight"] + 1


def _block(source: Tensors, prefix: str, block: int, heads: ValueHeads) -> Iterator[tuple[str, Weights]]:
    yield names.in_block(block, names.ATTN_NORM), source[f"{prefix}.input_layernorm.weight"] + 1
    yield names.in_block(block, names.POST_ATTENTION_NORM), source[f"{prefix}.post_attention_layernorm.weight"] + 1
    if f"{prefix}.self_attn.q_proj.weight" in source:
        yield from _attention(source, f"{prefix}.self_attn", block)
    else:
        yield from _gated_delta_net(source, f"{prefix}.linear_attn", block, heads)
    yield from _experts(source, f"{prefix}.mlp", block)


def _attention(source: Tensors, prefix: str, block: int) -> Iterator[tuple[str, Weights]]:
    yield names.in_block(block, names.ATTN_Q), source[f"{prefix}.q_proj.weight"]
    yield names.in_block(block, names.ATTN_K), source[f"{prefix}.k_proj.weight"]
    yield names.in_block(block, names.ATTN_V), source[f"{prefix}.v_proj.weight"]
    yield names.in_block(block, names.ATTN_OUTPUT), source[f"{prefix}.o_proj.weight"]
    yield names.in_block(block, names.ATTN_Q_NORM), source[f"{prefix}.q_norm.weight"] + 1
    yield names.in_block(block, names.ATTN_K_NORM), source[f"{prefix}.k_norm.weight"] + 1


def _gated_delta_net(source: Tensors, prefix: str, block: int, heads: ValueHeads) -> Iterator[tuple[str, Weights]]:
    yield names.in_block(block, names.ATTN_QKV), heads.value_rows(source[f"{prefix}.in_proj_qkv.weight"])
    yield names.in_block(block, names.ATTN_GATE), heads.rows(source[f"{prefix}.in_proj_z.weight"])
    yield names.in_block(block, names.SSM_ALPHA), heads.rows(source[f"{prefix}.in_proj_a.weight"])
    yield names.in_block(block, names.SSM_BETA), heads.rows(source[f"{prefix}.in_proj_b.weight"])
    yield names.in_block(block, names.SSM_CONV1D), heads.value_rows(source[f"{prefix}.conv1d.weight"][:, 0])
    yield names.in_block(block, names.SSM_A), heads.rows(-np.exp(source[f"{prefix}.A_log"]))
    yield names.in_block(block, names.SSM_DT), heads.rows(source[f"{prefix}.dt_bias"])
    yield names.in_block(block, names.SSM_NORM), source[f"{prefix}.norm.weight"]
    yield names.in_block(block, names.SSM_OUT), heads.rows(source[f"{prefix}.out_proj.weight"].T).T


def _experts(source: Tensors, prefix: str, block: int) -> Iterator[tuple[str, Weights]]:
    gate_up = source[f"{prefix}.experts.gate_up_proj"]
    width = gate_up.shape[1] // 2
    yield names.in_block(block, names.FFN_GATE_INP), source[f"{prefix}.gate.weight"]
    yield names.in_block(block, names.FFN_GATE_EXPS), gate_up[:, :width]
    yield names.in_block(block, names.FFN_UP_EXPS), gate_up[:, width:]
    yield names.in_block(block, names.FFN_DOWN_EXPS), source[f"{prefix}.experts.down_proj"]
    yield names.in_block(block, names.FFN_GATE_INP_SHEXP), source[f"{prefix}.shared_expert_gate.weight"][0]
    yield names.in_block(block, names.FFN_GATE_SHEXP), source[f"{prefix}.shared_expert.gate_proj.weight"]
    yield names.in_block(block, names.FFN_UP_SHEXP), source[f"{prefix}.shared_expert.up_proj.weight"]
    yield names.in_block(block, names.FFN_DOWN_SHEXP), source[f"{prefix}.shared_expert.down_proj.weight"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert a trained folder into a GGUF file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=["F32", "Q8_0"], default="Q8_0", help="ggml type of the matrices")
    arguments = parser.parse_args()
    convert(arguments.folder, arguments.out, arguments.type)


if __name__ == "__main__":
    main()
