"""Names of tensors, as llama.cpp's converters write them. Those from ATTN_NORM on belong to a block."""

from __future__ import annotations

TOKEN_EMBD = "token_embd.weight"
OUTPUT_NORM = "output_norm.weight"
OUTPUT = "output.weight"

OUTPUT_HC_NORM = "output_hc_norm.weight"
OUTPUT_HC_DOWN = "output_hc_down.weight"
OUTPUT_HC_UP = "output_hc_up.weight"
NGRAM_TABLE = "per_layer_token_embd.weight"

ATTN_NORM = "attn_norm.weight"
POST_ATTENTION_NORM = "post_attention_norm.weight"

ATTN_Q = "attn_q.weight"
ATTN_K = "attn_k.weight"
ATTN_V = "attn_v.weight"
ATTN_OUTPUT = "attn_output.weight"
ATTN_Q_NORM = "attn_q_norm.weight"
ATTN_K_NORM = "attn_k_norm.weight"

ATTN_QKV = "attn_qkv.weight"
ATTN_GATE = "attn_gate.weight"
SSM_CONV1D = "ssm_conv1d.weight"
SSM_DT = "ssm_dt.bias"
SSM_A = "ssm_a"
SSM_BA = "ssm_ba.weight"
SSM_BETA = "ssm_beta.weight"
SSM_ALPHA = "ssm_alpha.weight"
SSM_NORM = "ssm_norm.weight"
SSM_OUT = "ssm_out.weight"

FFN_GATE = "ffn_gate.weight"
FFN_UP = "ffn_up.weight"
FFN_DOWN = "ffn_down.weight"
FFN_GATE_INP = "ffn_gate_inp.weight"
FFN_GATE_UP_EXPS = "ffn_gate_up_exps.weight"
FFN_GATE_EXPS = "ffn_gate_exps.weight"
FFN_UP_EXPS = "ffn_up_exps.weight"
FFN_DOWN_EXPS = "ffn_down_exps.weight"
FFN_GATE_INP_SHEXP = "ffn_gate_inp_shexp.weight"
FFN_GATE_SHEXP = "ffn_gate_shexp.weight"
FFN_UP_SHEXP = "ffn_up_shexp.weight"
FFN_DOWN_SHEXP = "ffn_down_shexp.weight"

HC_ATTN = "hc_attn"
HC_FFN = "hc_ffn"

INDEXER_Q = "indexer.q_proj.weight"
INDEXER_K = "indexer.k_proj.weight"
INDEXER_Q_NORM = "indexer.q_norm.weight"
INDEXER_K_NORM = "indexer.k_norm.weight"

PLE_KEY = "ple_key.weight"
PLE_VALUE = "ple_value.weight"
PLE_CONV1D = "ple_conv1d.weight"
PLE_NORM_KEY = "ple_norm_key.weight"
PLE_NORM_QUERY = "ple_norm_query.weight"
PLE_NORM_CONV = "ple_norm_conv.weight"

NEXTN_EH_PROJ = "nextn.eh_proj.weight"
NEXTN_ENORM = "nextn.enorm.weight"
NEXTN_HNORM = "nextn.hnorm.weight"
NEXTN_SHARED_HEAD_NORM = "nextn.shared_head_norm.weight"
NEXTN_EMBED_TOKENS = "nextn.embed_tokens.weight"
NEXTN_SHARED_HEAD_HEAD = "nextn.shared_head_head.weight"
NEXTN_HC_HEAD_NORM = "nextn.hc_head_norm.weight"
NEXTN_HC_HEAD_DOWN = "nextn.hc_head_down.weight"
NEXTN_HC_HEAD_UP = "nextn.hc_head_up.weight"

OUTPUT_MIXER = (OUTPUT_HC_NORM, OUTPUT_HC_DOWN, OUTPUT_HC_UP)
HEAD_MIXER = (NEXTN_HC_HEAD_NORM, NEXTN_HC_HEAD_DOWN, NEXTN_HC_HEAD_UP)


def mixer(part: str) -> tuple[str, str, str, str]:
    """Norm, down, up and inject of a block's mixer HC_ATTN or HC_FFN of residual streams."""
    return (f"{part}_norm.weight", f"{part}_down.weight", f"{part}_up.weight", f"{part}_inject.weight")


def in_block(layer: int, name: str) -> str:
    """The full name of a block's tensor; the MTP head is the block after the trunk's."""
    return f"blk.{layer}.{name}"


def scale(name: str) -> str:
    """The name of a factor of a whole matrix, or of each of a stack, which files of NVFP4 have beside it."""
    return name.removesuffix("weight") + "scale"


def role(name: str) -> str:
    """A full name without its block: what the tensor is, whatever layer it belongs to."""
    return name.split(".", 2)[2] if name.startswith("blk.") else name
