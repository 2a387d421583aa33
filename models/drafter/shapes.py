"""The shapes of a block drafter's tensors."""

from __future__ import annotations

from collections.abc import Container

from trigraph.models import names
from trigraph.models.drafter.config import BlockDrafterConfig
from trigraph.models.drafter.tensors import (
    CONFIDENCE,
    CONTEXT_NORM,
    CONV_BASE,
    CONV_PROJ,
    D2T,
    FC,
    FFN_NORM,
    MARKOV_W1,
    MARKOV_W2,
    SELECTOR_HIDDEN,
    SELECTOR_PREDECESSOR,
    SELECTOR_SUCCESSOR,
)
from trigraph.models.shapes import Shapes


def drafter_shapes(config: BlockDrafterConfig, vocab: int, rows: int, present: Container[str] = ()) -> Shapes:
    """Every tensor of a drafter; `present` are the names in the file, which tell what optional ones there are.

    `vocab` counts the model's tokens, `rows` those of the output matrix.
    """
    hidden, rank = config.hidden, config.rank
    shapes: Shapes = {
        FC: (hidden, len(config.taps) * hidden),
        CONTEXT_NORM: (hidden,),
        names.OUTPUT_NORM: (hidden,),
    }
    if config.kind == "dflash2":
        shapes |= dict.fromkeys((SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR), (vocab, rank))
        shapes[SELECTOR_HIDDEN] = (rank, hidden)
    if config.kind == "dspark":
        shapes |= {MARKOV_W1: (vocab, rank), MARKOV_W2: (rows, rank)}
    optional: Shapes = {
        names.TOKEN_EMBD: (vocab, hidden),
        names.OUTPUT: (rows, hidden),
        D2T: (rows,),
        **(dict(zip(CONFIDENCE, ((1, hidden + rank), (1,)), strict=True)) if config.kind == "dspark" else {}),
    }
    shapes |= {name: shape for name, shape in optional.items() if name in present}
    for layer in range(config.layers):
        shapes |= {names.in_block(layer, name): shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: BlockDrafterConfig) -> Shapes:
    hidden, q, kv = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: Shapes = {
        names.ATTN_NORM: (hidden,),
        names.ATTN_Q: (q, hidden),
        names.ATTN_K: (kv, hidden),
        names.ATTN_V: (kv, hidden),
        names.ATTN_OUTPUT: (hidden, q),
        names.ATTN_Q_NORM: (config.head_dim,),
        names.ATTN_K_NORM: (config.head_dim,),
        FFN_NORM: (hidden,),
        names.FFN_GATE: (config.ffn, hidden),
        names.FFN_UP: (config.ffn, hidden),
        names.FFN_DOWN: (hidden, config.ffn),
    }
    if config.kind == "dflash2":
        taps = 2 * config.conv_kernel
        shapes |= dict.fromkeys(CONV_PROJ.values(), (taps * (hidden // config.conv_group), hidden))
        shapes |= dict.fromkeys(CONV_BASE.values(), (2, config.conv_kernel, hidden))
    return shapes
