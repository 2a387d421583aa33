"""Metadata and tensors of a synthetic file: the structure that llama.cpp's converters write."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import gguf

from trigraph.models.geometries import Geometry
from trigraph.models.synth.types import matrix_type
from trigraph.models.synth.vocabulary import CHAT_TEMPLATE, Vocabulary, make_vocabulary

_FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_K_M": gguf.LlamaFileType.MOSTLY_Q4_K_M,
    "Q5_K_M": gguf.LlamaFileType.MOSTLY_Q5_K_M,
    "Q6_K": gguf.LlamaFileType.MOSTLY_Q6_K,
    "IQ4_XS": gguf.LlamaFileType.MOSTLY_IQ4_XS,
    "mixed": gguf.LlamaFileType.GUESSED,
}


@dataclass(frozen=True)
class SynthTensor:
    """One tensor to write. `shape` is outermost first; `rms` counts for weights only."""

    name: str
    shape: tuple[int, ...]
    type: str
    kind: Literal["weights", "norm", "dt", "decay"] = "weights"
    rms: float = 0.0

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[self.type]]
        return self.shape[-1] // block * size

    @property
    def nbytes(self) -> int:
        return self.count // self.shape[-1] * self.row_bytes


class _Layout:
    def __init__(self, geometry: Geometry, quant: str) -> None:
        self.geometry = geometry
        self.quant = quant
        self.tensors: list[SynthTensor] = []
        self.matrices = 0

    def matrix(self, name: str, *shape: int, rms: float | None = None) -> None:
        kind = matrix_type(self.quant, self.geometry, name, shape[-1], self.matrices)
        self.matrices += 1
        self.tensors.append(SynthTensor(name, shape, kind, rms=shape[-1] ** -0.5 if rms is None else rms))

    def floats(self, name: str, *shape: int, rms: float) -> None:
        """Weights that are never quantised."""
        self.tensors.append(SynthTensor(name, shape, "F32", rms=rms))

    def vector(self, name: str, length: int, kind: Literal["norm", "dt", "decay"] = "norm") -> None:
        self.tensors.append(SynthTensor(name, (length,), "F32", kind))

    def attention(self, block: str) -> None:
        g = self.geometry
        self.matrix(f"{block}.attn_q.weight", 2 * g.heads * g.head_dim, g.hidden)
        self.matrix(f"{block}.attn_k.weight", g.kv_heads * g.head_dim, g.hidden)
        self.matrix(f"{block}.attn_v.weight", g.kv_heads * g.head_dim, g.hidden)
        self.matrix(f"{block}.attn_output.weight", g.hidden, g.heads * g.head_dim)
        self.vector(f"{block}.attn_q_norm.weight", g.head_dim)
        self.vector(f"{block}.attn_k_norm.weight", g.head_dim)

    def gated_delta_net(self, block: str) -> None:
        g = self.geometry
        value_dim = g.gdn_v_heads * g.gdn_head_dim
        self.matrix(f"{block}.attn_qkv.weight", g.gdn_channels, g.hidden)
        self.matrix(f"{block}.attn_gate.weight", value_dim, g.hidden)
        self.floats(f"{block}.ssm_conv1d.weight", g.gdn_channels, g.conv_kernel, rms=g.conv_kernel**-0.5)
        self.vector(f"{block}.ssm_dt.bias", g.gdn_v_heads, "dt")
        self.vector(f"{block}.ssm_a", g.gdn_v_heads, "decay")
        if g.architecture == "qwen3next":
            self.matrix(f"{block}.ssm_ba.weight", 2 * g.gdn_v_heads, g.hidden)
        else:
            self.matrix(f"{block}.ssm_beta.weight", g.gdn_v_heads, g.hidden)
            self.matrix(f"{block}.ssm_alpha.weight", g.gdn_v_heads, g.hidden)
        self.vector(f"{block}.ssm_norm.weight", g.gdn_head_dim)
        self.matrix(f"{block}.ssm_out.weight", g.hidden, value_dim)

    def ffn(self, block: str) -> None:
        g = self.geometry
        if not g.experts:
            self._mlp(block, "", g.ffn)
            return
        # Twice the usual scale: the experts' probabilities then differ as much as a trained router's.
        self.floats(f"{block}.ffn_gate_inp.weight", g.experts, g.hidden, rms=2 * g.hidden**-0.5)
        self._mlp(block, "_exps", g.expert_ffn, g.experts)
        self.floats(f"{block}.ffn_gate_inp_shexp.weight", g.hidden, rms=g.hidden**-0.5)
        self._mlp(block, "_shexp", g.shared_ffn)

    def _mlp(self, block: str, suffix: str, width: int, *experts: int) -> None:
        hidden = self.geometry.hidden
        self.matrix(f"{block}.ffn_gate{suffix}.weight", *experts, width, hidden)
        self.matrix(f"{block}.ffn_up{suffix}.weight", *experts, width, hidden)
        self.matrix(f"{block}.ffn_down{suffix}.weight", *experts, hidden, width)

    def mtp(self, block: str) -> None:
        hidden = self.geometry.hidden
        self.matrix(f"{block}.nextn.eh_proj.weight", hidden, 2 * hidden)
        for norm in ("enorm", "hnorm", "shared_head_norm"):
            self.vector(f"{block}.nextn.{norm}.weight", hidden)


def tensors(geometry: Geometry, quant: str) -> list[SynthTensor]:
    """Every tensor of the file, in file order."""
    layout = _Layout(geometry, quant)
    output_rms = 2.5 * geometry.hidden**-0.5  # logits then differ as much as a language model's
    layout.matrix("token_embd.weight", geometry.vocab, geometry.hidden, rms=output_rms if geometry.tied else 1.0)
    layout.vector("output_norm.weight", geometry.hidden)
    if not geometry.tied:
        layout.matrix("output.weight", geometry.vocab, geometry.hidden, rms=output_rms)
    for i in range(geometry.layers + 1):
        block = f"blk.{i}"
        layout.vector(f"{block}.attn_norm.weight", geometry.hidden)
        layout.vector(f"{block}.post_attention_norm.weight", geometry.hidden)
        if geometry.is_recurrent(i):
            layout.gated_delta_net(block)
        else:
            layout.attention(block)
        layout.ffn(block)
    layout.mtp(f"blk.{geometry.layers}")
    return layout.tensors


def add_metadata(writer: gguf.GGUFWriter, geometry: Geometry, name: str, quant: str) -> None:
    """Every key that a converted file of this geometry has, a tokenizer and a plain chat template included."""
    g = geometry
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(_FILE_TYPES[quant])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(g.layers + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_context_length(g.context_length)
    writer.add_embedding_length(g.hidden)
    if g.ffn:
        writer.add_feed_forward_length(g.ffn)
    writer.add_head_count(g.heads)
    writer.add_head_count_kv(g.kv_heads)
    writer.add_key_length(g.head_dim)
    writer.add_value_length(g.head_dim)
    writer.add_layer_norm_rms_eps(g.rms_eps)
    writer.add_rope_freq_base(g.rope_theta)
    writer.add_rope_dimension_count(g.rope_dims)
    if g.architecture != "qwen3next":
        writer.add_rope_dimension_sections(g.rope_sections)
    writer.add_ssm_conv_kernel(g.conv_kernel)
    writer.add_ssm_state_size(g.gdn_head_dim)
    writer.add_ssm_group_count(g.gdn_k_heads)
    writer.add_ssm_time_step_rank(g.gdn_v_heads)
    writer.add_ssm_inner_size(g.gdn_v_heads * g.gdn_head_dim)
    writer.add_full_attention_interval(g.attention_interval)
    if g.experts:
        writer.add_expert_count(g.experts)
        writer.add_expert_used_count(g.experts_used)
        writer.add_expert_feed_forward_length(g.expert_ffn)
        writer.add_expert_shared_feed_forward_length(g.shared_ffn)
    _add_tokenizer(writer, make_vocabulary(g.vocab, g.pre_tokenizer), g.pre_tokenizer)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary, pre_tokenizer: str) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_eos_token_id(vocabulary.end_of_turn)
    writer.add_bos_token_id(vocabulary.end_of_text)
    writer.add_pad_token_id(vocabulary.end_of_text)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
