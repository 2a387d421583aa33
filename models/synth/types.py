"""Which ggml type each tensor of a synthetic file gets.

Source of the mixes: llama.cpp's quantiser (`llama-quant.cpp`, without an importance matrix), with what published files
of these models do differently: `ssm_alpha`, `ssm_beta`, `ssm_ba` and the shared experts in Q8_0, and the down experts
of Q4_K_M in Q5_K where the quantiser would leave Q4_K. The mixes of Unsloth (UD) have the shape that their publisher
describes (unsloth.ai/docs/models/qwen3.5/gguf-benchmarks): few bits for the routed experts, one more for those that go
down, and many for attention, the Gated DeltaNet and the shared experts. Single layers differ from file to file.
"""

from __future__ import annotations

import gguf

from trigraph.models import names
from trigraph.models.errors import TrigraphError
from trigraph.models.geometries import Geometry
from trigraph.models.tensor_types import TENSOR_TYPES

_DEFAULT_TYPE = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    "Q8_0": "Q8_0",
    "Q4_0": "Q4_0",
    "Q4_K_M": "Q4_K",
    "Q5_K_M": "Q5_K",
    "Q6_K": "Q6_K",
    "IQ4_XS": "IQ4_XS",
    "MXFP4_MOE": "Q8_0",
    "UD-Q4_K_XL": "Q8_0",
    "UD-Q2_K_XL": "Q6_K",
    "UD-IQ3_XXS": "Q6_K",
}
# By mix, the types of the feed-forward matrices up and gate, and down; in MXFP4_MOE only experts have them.
_FFN_TYPES = {
    "MXFP4_MOE": ("MXFP4", "MXFP4"),
    "UD-Q4_K_XL": ("Q4_K", "Q5_K"),
    "UD-Q2_K_XL": ("Q2_K", "Q3_K"),
    "UD-IQ3_XXS": ("IQ3_XXS", "IQ3_S"),
}
QUANTS = (*_DEFAULT_TYPE, "mixed")

_ALWAYS_Q8_0 = (
    names.SSM_ALPHA, names.SSM_BETA, names.SSM_BA, names.FFN_GATE_SHEXP, names.FFN_UP_SHEXP, names.FFN_DOWN_SHEXP
)  # fmt: skip

_EXPERTS = (names.FFN_GATE_EXPS, names.FFN_UP_EXPS, names.FFN_GATE_UP_EXPS)

# For rows that are no whole number of 256-wide blocks.
_NARROW = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL", "TQ1_0": "Q4_0",
    "TQ2_0": "Q4_0", "Q1_0": "Q4_0", "NVFP4": "MXFP4",
    **dict.fromkeys(("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"), "IQ4_NL"),
}  # fmt: skip


def check_quant(quant: str) -> None:
    if quant not in QUANTS:
        raise TrigraphError(f"unknown quant {quant!r}; the known ones are {', '.join(QUANTS)}")


def matrix_type(quant: str, geometry: Geometry, name: str, row_length: int, index: int) -> str:
    """The type of a weight matrix. `index` numbers the matrices of the file: `mixed` takes the types in turn."""
    if quant == "mixed":
        wanted = TENSOR_TYPES[index % len(TENSOR_TYPES)]
    elif quant in ("F32", "F16", "BF16"):
        wanted = quant
    else:
        wanted = _quantised_type(quant, geometry, name)
    return fitting_type(wanted, row_length)


def fitting_type(wanted: str, row_length: int) -> str:
    """`wanted`, or the type that converters take instead where its blocks do not fit a row."""
    for candidate in (wanted, _NARROW.get(wanted, wanted)):
        if row_length % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[candidate]][0] == 0:
            return candidate
    return "F16"


def _quantised_type(quant: str, geometry: Geometry, name: str) -> str:
    default = _DEFAULT_TYPE[quant]
    if quant in _FFN_TYPES:
        return _dynamic_type(quant, name)
    if name == names.OUTPUT or (name == names.TOKEN_EMBD and geometry.tied):
        return "Q8_0" if default == "Q8_0" else "Q6_K"
    if not name.startswith("blk."):
        return default
    layer, role = int(name.split(".")[1]), names.role(name)
    if role in _ALWAYS_Q8_0:
        return "Q8_0"
    blocks = geometry.layers + geometry.mtp_layers
    if role in (names.ATTN_V, names.ATTN_QKV):
        if quant == "IQ4_XS" and geometry.heads >= 4 * geometry.kv_heads:
            return "Q5_K"
        if quant in ("Q4_K_M", "Q5_K_M") and _gets_more_bits(layer, blocks):
            return "Q6_K"
    if role in (names.FFN_DOWN, names.FFN_DOWN_EXPS):
        if quant == "IQ4_XS" and layer < blocks // 8:
            return "Q5_K"
        if quant in ("Q4_K_M", "Q5_K_M") and _gets_more_bits(layer, blocks):
            return "Q6_K"
        if quant == "Q4_K_M" and role == names.FFN_DOWN_EXPS and geometry.streams is None:
            return "Q5_K"
    return default


def _dynamic_type(quant: str, name: str) -> str:
    """A few bits for experts, or for the whole feed-forward network of a dense model; as many for the others."""
    up, down = _FFN_TYPES[quant]
    role = names.role(name)
    dense = quant != "MXFP4_MOE"
    if role in _EXPERTS or (dense and role in (names.FFN_GATE, names.FFN_UP)):
        return up
    if role == names.FFN_DOWN_EXPS or (dense and role == names.FFN_DOWN):
        return down
    return "Q8_0" if role in (*_ALWAYS_Q8_0, names.SSM_OUT) else _DEFAULT_TYPE[quant]


def _gets_more_bits(layer: int, blocks: int) -> bool:
    """The first and the last eighth of the blocks, and every third between them."""
    eighth = blocks // 8
    return layer < eighth or layer >= 7 * blocks // 8 or (layer - eighth) % 3 == 2
