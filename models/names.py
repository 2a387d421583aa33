"""Names of tensors, as llama.cpp's converters write them. Those from ATTN_NORM on belong to a block."""

from __future__ import annotations

TOKEN_EMBD = "token_embd.weight"
OUTPUT_NORM = "output_norm.weight"
OUTPUT = "output.weight"

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

NEXTN_EH_PROJ = "nextn.eh_proj.weight"
NEXTN_ENORM = "nextn.enorm.weight"
NEXTN_HNORM = "nextn.hnorm.weight"
NEXTN_SHARED_HEAD_NORM = "nextn.shared_head_norm.weight"
NEXTN_EMBED_TOKENS = "nextn.embed_tokens.weight"
NEXTN_SHARED_HEAD_HEAD = "nextn.shared_head_head.weight"


def in_block(layer: int, name: str) -> str:
    """The full name of a block's tensor; the MTP head is the block after the trunk's."""
    return f"blk.{layer}.{name}"


def scale(name: str) -> str:
    """The name of a factor of a whole matrix, or of each of a stack, which files of NVFP4 have beside it."""
    return name.removesuffix("weight") + "scale"


def role(name: str) -> str:
    """A full name without its block: what the tensor is, whatever layer it belongs to."""
    return name.split(".", 2)[2] if name.startswith("blk.") else name
