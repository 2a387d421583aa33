"""The tensors of a vision tower, as llama.cpp's converter names them, with their shapes."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from trigraph.models.shapes import Shapes
from trigraph.models.vision.config import MERGE, PATCH, POSITION_TABLE

PATCH_WEIGHTS = ("v.patch_embd.weight", "v.patch_embd.weight.1")
"""The weights of the two frames of a patch in a video. A still image has both equal, so what counts is their sum."""
PATCH_BIAS = "v.patch_embd.bias"

LN1, LN2 = "ln1", "ln2"
ATTN_QKV, ATTN_OUT = "attn_qkv", "attn_out"
ATTN_EACH = ("attn_q", "attn_k", "attn_v")
"""In the place of the one of all three, in files that Ollama has written."""
FFN_UP, FFN_DOWN = "ffn_up", "ffn_down"

MERGER_NORM = "v.post_ln"
MERGER_IN, MERGER_OUT = "mm.0", "mm.2"


class Dimensions(Protocol):
    """What shapes follow from; `VisionConfig` documents the fields."""

    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def table_side(self) -> int: ...


def in_block(layer: int, name: str) -> str:
    """The name of a block's norm or matrix, without `.weight` or `.bias`."""
    return f"v.blk.{layer}.{name}"


def tower_shapes(dims: Dimensions, present: Container[str] = ()) -> Shapes:
    """Every tensor of a tower. `present` are the names in the file: they choose between forms of the same weights."""
    width, merged = dims.width, MERGE * MERGE * dims.width
    shapes: Shapes = dict.fromkeys(PATCH_WEIGHTS, (width, 3, PATCH, PATCH))
    shapes |= {PATCH_BIAS: (width,), POSITION_TABLE: (dims.table_side**2, width)}
    for layer in range(dims.layers):
        for norm in (LN1, LN2):
            shapes |= _with_bias(in_block(layer, norm), (width,))
        if f"{in_block(layer, ATTN_EACH[0])}.weight" in present:
            for part in ATTN_EACH:
                shapes |= _with_bias(in_block(layer, part), (width, width))
        else:
            shapes |= _with_bias(in_block(layer, ATTN_QKV), (3 * width, width))
        shapes |= _with_bias(in_block(layer, ATTN_OUT), (width, width))
        shapes |= _with_bias(in_block(layer, FFN_UP), (dims.ffn, width))
        shapes |= _with_bias(in_block(layer, FFN_DOWN), (width, dims.ffn))
    shapes |= _with_bias(MERGER_NORM, (width,))
    shapes |= _with_bias(MERGER_IN, (merged, merged))
    return shapes | _with_bias(MERGER_OUT, (dims.hidden, merged))


def _with_bias(name: str, shape: tuple[int, ...]) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
