"""Metadata and tensors of a synthetic file: the structure that llama.cpp's converters write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import gguf

from trigraph.models import names
from trigraph.models.architecture import ARCHITECTURES
from trigraph.models.geometries import Geometry
from trigraph.models.shapes import mtp_shapes, trunk_shapes
from trigraph.models.synth.popularity import row_scales
from trigraph.models.synth.streams import add_streams
from trigraph.models.synth.types import matrix_type
from trigraph.models.synth.vocabulary import CHAT_TEMPLATE, Vocabulary, make_vocabulary

FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_K_M": gguf.LlamaFileType.MOSTLY_Q4_K_M,
    "Q5_K_M": gguf.LlamaFileType.MOSTLY_Q5_K_M,
    "Q6_K": gguf.LlamaFileType.MOSTLY_Q6_K,
    "IQ4_XS": gguf.LlamaFileType.MOSTLY_IQ4_XS,
    "MXFP4_MOE": gguf.LlamaFileType.MOSTLY_MXFP4_MOE,
    "UD-Q4_K_XL": gguf.LlamaFileType.MOSTLY_Q4_K_M,
    "UD-Q2_K_XL": gguf.LlamaFileType.MOSTLY_Q2_K,
    "UD-IQ3_XXS": gguf.LlamaFileType.MOSTLY_IQ3_XXS,
    "mixed": gguf.LlamaFileType.GUESSED,
}


@dataclass(frozen=True)
class SynthTensor:
    """One tensor to write. `shape` is outermost first; `rms` counts for weights only."""

    name: str
    shape: tuple[int, ...]
    type: str
    kind: Literal["weights", "norm", "dt", "decay", "hollow"] = "weights"
    rms: float = 0.0
    row_scales: tuple[float, ...] = ()
    """Factors of the rows of a float32 weight, in a random order."""

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


# What is never quantised, by the last part of its name.
_VECTORS: Mapping[str, Literal["dt", "decay"]] = {names.SSM_DT: "dt", names.SSM_A: "decay"}
_FLOAT_MATRICES = (
    names.SSM_CONV1D, names.FFN_GATE_INP, names.FFN_GATE_INP_SHEXP, names.PLE_CONV1D, names.INDEXER_Q, names.INDEXER_K
)  # fmt: skip
_NGRAM_NORMS = (names.PLE_NORM_KEY, names.PLE_NORM_QUERY, names.PLE_NORM_CONV)
_HOLLOW_BYTES = 1 << 30
"""A table of n-grams that is larger is a hole in the file, which reads as zeros and takes no disk."""


def tensors(geometry: Geometry, quant: str, skew: float = 0.0, hollow: bool = False) -> list[SynthTensor]:
    """Every tensor of the file, in file order; `skew` and `hollow` as in `write_synthetic`."""
    scales = tuple(row_scales(geometry.experts, geometry.experts_used, skew).tolist()) if skew else ()
    head = mtp_shapes(geometry, [names.in_block(geometry.layers, names.NEXTN_SHARED_HEAD_NORM)])
    wanted: list[SynthTensor] = []
    matrices = 0
    for name, shape in (trunk_shapes(geometry) | (head if geometry.mtp_layers else {})).items():
        role = names.role(name)
        if role.endswith("norm.weight") or role in _NGRAM_NORMS:
            wanted.append(SynthTensor(name, shape, "F32", "norm"))
        elif role in _VECTORS:
            wanted.append(SynthTensor(name, shape, "F32", _VECTORS[role]))
        elif role in _FLOAT_MATRICES:
            own = scales if role == names.FFN_GATE_INP else ()
            wanted.append(SynthTensor(name, shape, "F32", rms=_rms(geometry, role, shape[-1]), row_scales=own))
        else:
            kind = matrix_type(quant, geometry, name, shape[-1], matrices)
            tensor = SynthTensor(name, shape, kind, rms=_rms(geometry, role, shape[-1]))
            hole = role == names.NGRAM_TABLE and tensor.nbytes > _HOLLOW_BYTES
            wanted.append(replace(tensor, kind="hollow") if hole else tensor)
            matrices += 1
    return [replace(one, kind="hollow") if hollow and one.kind == "weights" else one for one in wanted]


def _rms(geometry: Geometry, role: str, inputs: int) -> float:
    """The root mean square of a tensor's weights."""
    if role == names.FFN_GATE_INP:  # the experts' probabilities then differ as much as a trained router's
        return float(2 * inputs**-0.5)
    if role == names.NGRAM_TABLE or (role == names.TOKEN_EMBD and not geometry.tied):
        return 1.0
    if role in (names.TOKEN_EMBD, names.OUTPUT):  # logits then differ as much as a language model's
        return float(2.5 * inputs**-0.5)
    return float(inputs**-0.5)


def add_metadata(writer: gguf.GGUFWriter, geometry: Geometry, name: str, quant: str) -> None:
    """Every key that a converted file of this geometry has, a tokenizer and a plain chat template included."""
    g, architecture = geometry, ARCHITECTURES[geometry.architecture]
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(FILE_TYPES[quant])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(g.layers + g.mtp_layers)
    if g.mtp_layers:
        writer.add_nextn_predict_layers(g.mtp_layers)
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
    if architecture.rope_sections:
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
    vocabulary = make_vocabulary(g.vocab, architecture.pre_tokenizer)
    if g.streams is not None:
        add_streams(writer, g, g.streams, vocabulary.end_of_text)
    add_tokenizer(writer, vocabulary, architecture.pre_tokenizer)


def add_tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary, pre_tokenizer: str) -> None:
    """The keys of a vocabulary and a plain chat template."""
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
