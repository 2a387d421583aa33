"""The tensors of a block drafter, as llama.cpp's converter names them, with their shapes."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from trigraph.models import names
from trigraph.models.shapes import Shapes

FC = "fc.weight"
"""From the residual streams that a drafter reads, side by side, to its width."""
CONTEXT_NORM = "enc.output_norm.weight"
FFN_NORM = "ffn_norm.weight"
CONV_PROJ = {"attn": "attn_conv_proj.weight", "ffn": "ffn_conv_proj.weight"}
CONV_BASE = {"attn": "attn_conv_base", "ffn": "ffn_conv_base"}
"""What the convolutions add to the products of CONV_PROJ; the names have no `.weight`."""
SELECTOR_PREDECESSOR = "selector_predecessor.weight"
SELECTOR_SUCCESSOR = "selector_successor.weight"
SELECTOR_HIDDEN = "selector_hidden.weight"
MARKOV_W1 = "markov_w1.weight"
MARKOV_W2 = "markov_w2.weight"
SELECTOR = (SELECTOR_HIDDEN, SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR)
MARKOV = (MARKOV_W1, MARKOV_W2)
CONFIDENCE = ("conf_proj.weight", "conf_proj.bias")
"""Optional, and not in use: how many drafts to verify is the host's choice."""
D2T = "d2t"
"""The token of each row of the drafter's own output matrix, where it has fewer rows than there are tokens."""


class Dimensions(Protocol):
    """What shapes follow from; `BlockDrafterConfig` documents the fields."""

    @property
    def kind(self) -> str: ...
    @property
    def taps(self) -> tuple[int, ...]: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def conv_kernel(self) -> int: ...
    @property
    def conv_group(self) -> int: ...
    @property
    def rank(self) -> int: ...


def drafter_shapes(dims: Dimensions, vocab: int, rows: int, present: Container[str] = ()) -> Shapes:
    """Every tensor of a drafter; `present` are the names in the file, which tell what optional ones there are.

    `vocab` counts the model's tokens, `rows` those of the output matrix.
    """
    hidden, rank = dims.hidden, dims.rank
    shapes: Shapes = {
        FC: (hidden, len(dims.taps) * hidden),
        CONTEXT_NORM: (hidden,),
        names.OUTPUT_NORM: (hidden,),
    }
    if dims.kind == "dflash2":
        shapes |= dict.fromkeys((SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR), (vocab, rank))
        shapes[SELECTOR_HIDDEN] = (rank, hidden)
    if dims.kind == "dspark":
        shapes |= {MARKOV_W1: (vocab, rank), MARKOV_W2: (rows, rank)}
    optional: Shapes = {
        names.TOKEN_EMBD: (vocab, hidden),
        names.OUTPUT: (rows, hidden),
        D2T: (rows,),
        **(dict(zip(CONFIDENCE, ((1, hidden + rank), (1,)), strict=True)) if dims.kind == "dspark" else {}),
    }
    shapes |= {name: shape for name, shape in optional.items() if name in present}
    for layer in range(dims.layers):
        shapes |= {names.in_block(layer, name): shape for name, shape in _layer_shapes(dims).items()}
    return shapes


def _layer_shapes(dims: Dimensions) -> Shapes:
    hidden, q, kv = dims.hidden, dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    shapes: Shapes = {
        names.ATTN_NORM: (hidden,),
        names.ATTN_Q: (q, hidden),
        names.ATTN_K: (kv, hidden),
        names.ATTN_V: (kv, hidden),
        names.ATTN_OUTPUT: (hidden, q),
        names.ATTN_Q_NORM: (dims.head_dim,),
        names.ATTN_K_NORM: (dims.head_dim,),
        FFN_NORM: (hidden,),
        names.FFN_GATE: (dims.ffn, hidden),
        names.FFN_UP: (dims.ffn, hidden),
        names.FFN_DOWN: (hidden, dims.ffn),
    }
    if dims.kind == "dflash2":
        taps = 2 * dims.conv_kernel
        shapes |= dict.fromkeys(CONV_PROJ.values(), (taps * (hidden // dims.conv_group), hidden))
        shapes |= dict.fromkeys(CONV_BASE.values(), (2, dims.conv_kernel, hidden))
    return shapes
