"""The tensors that a model needs, with their shapes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol, TypeAlias

from trigraph.models import names
from trigraph.models.streams import Streams

Shapes: TypeAlias = dict[str, tuple[int, ...]]
"""Shapes by name, outermost dimension first."""


class Dimensions(Protocol):
    """What shapes follow from; `ModelConfig` documents the fields."""

    @property
    def hidden(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def tied(self) -> bool: ...
    @property
    def recurrent(self) -> Sequence[bool]: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def gdn_v_heads(self) -> int: ...
    @property
    def gdn_head_dim(self) -> int: ...
    @property
    def gdn_channels(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    @property
    def conv_kernel(self) -> int: ...
    @property
    def fused_beta_alpha(self) -> bool: ...
    @property
    def ffn(self) -> int: ...
    @property
    def experts(self) -> int: ...
    @property
    def expert_ffn(self) -> int: ...
    @property
    def shared_ffn(self) -> int: ...
    @property
    def streams(self) -> Streams | None: ...


def trunk_shapes(dims: Dimensions, present: Container[str] = ()) -> Shapes:
    """Every tensor of a trunk. `present` are the names in the file: they choose between forms of the same weights."""
    shapes: Shapes = {names.TOKEN_EMBD: (dims.vocab, dims.hidden)}
    if dims.streams is None:
        shapes[names.OUTPUT_NORM] = (dims.hidden,)
    else:
        shapes |= _mixer_shapes(dims, dims.streams, names.OUTPUT_MIXER)
    if not dims.tied:
        shapes[names.OUTPUT] = (dims.vocab, dims.hidden)
    for layer, recurrent in enumerate(dims.recurrent):
        mixer = _gdn_shapes(dims) if recurrent else _attention_shapes(dims)
        shapes |= _in_block(layer, _norm_shapes(dims) | mixer | _ffn_shapes(dims, layer, present))
    return shapes | _ngram_shapes(dims)


def mtp_shapes(dims: Dimensions, present: Container[str]) -> Shapes:
    """Every tensor of the MTP head; `present` also says which optional ones there are."""
    layer, hidden = len(dims.recurrent), dims.hidden
    head: Shapes = {
        names.NEXTN_EH_PROJ: (hidden, 2 * hidden),
        names.NEXTN_ENORM: (hidden,),
        names.NEXTN_HNORM: (hidden if dims.streams is None else dims.streams.count * hidden,),
    }
    if dims.streams is None:
        optional: Shapes = {
            names.NEXTN_SHARED_HEAD_NORM: (hidden,),
            names.NEXTN_EMBED_TOKENS: (dims.vocab, hidden),
            names.NEXTN_SHARED_HEAD_HEAD: (dims.vocab, hidden),
        }
        head |= {name: shape for name, shape in optional.items() if names.in_block(layer, name) in present}
    else:
        head |= _mixer_shapes(dims, dims.streams, names.HEAD_MIXER)
    block = _norm_shapes(dims) | _attention_shapes(dims) | _ffn_shapes(dims, layer, present)
    return _in_block(layer, block | head)


def _in_block(layer: int, shapes: Shapes) -> Shapes:
    return {names.in_block(layer, name): shape for name, shape in shapes.items()}


def _norm_shapes(dims: Dimensions) -> Shapes:
    """What comes before a block's two parts: norms, or mixers of residual streams, which have norms of their own."""
    if dims.streams is None:
        return {names.ATTN_NORM: (dims.hidden,), names.POST_ATTENTION_NORM: (dims.hidden,)}
    parts = (names.mixer(part) for part in (names.HC_ATTN, names.HC_FFN))
    return {name: shape for part in parts for name, shape in _mixer_shapes(dims, dims.streams, part).items()}


def _mixer_shapes(dims: Dimensions, streams: Streams, mixer: tuple[str, ...]) -> Shapes:
    """Norm, down, up and, where a part's result goes back into the streams, inject."""
    wide, rank = streams.count * dims.hidden, streams.low_rank
    return dict(zip(mixer, ((wide,), (rank, wide), (wide, rank), (streams.count, wide)), strict=False))


def _ngram_shapes(dims: Dimensions) -> Shapes:
    if dims.streams is None or (ngrams := dims.streams.ngrams) is None:
        return {}
    wide = dims.streams.count * dims.hidden
    block: Shapes = {
        names.PLE_KEY: (wide, dims.hidden),
        names.PLE_VALUE: (dims.hidden, dims.hidden),
        names.PLE_CONV1D: (wide, ngrams.conv_kernel),
        **dict.fromkeys((names.PLE_NORM_KEY, names.PLE_NORM_QUERY, names.PLE_NORM_CONV), (wide,)),
    }
    return _in_block(ngrams.layer, block) | {names.NGRAM_TABLE: (ngrams.rows, ngrams.width)}


def _attention_shapes(dims: Dimensions) -> Shapes:
    hidden, q, kv = dims.hidden, dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    shapes: Shapes = {
        names.ATTN_Q: (2 * q, hidden),
        names.ATTN_K: (kv, hidden),
        names.ATTN_V: (kv, hidden),
        names.ATTN_OUTPUT: (hidden, q),
        names.ATTN_Q_NORM: (dims.head_dim,),
        names.ATTN_K_NORM: (dims.head_dim,),
    }
    if dims.streams is not None:
        indexer = dims.streams.indexer
        shapes |= {
            names.INDEXER_Q: (indexer.heads * indexer.head_dim, hidden),
            names.INDEXER_K: (indexer.head_dim, hidden),
            names.INDEXER_Q_NORM: (indexer.head_dim,),
            names.INDEXER_K_NORM: (indexer.head_dim,),
        }
    return shapes


def _gdn_shapes(dims: Dimensions) -> Shapes:
    hidden, v_heads = dims.hidden, dims.gdn_v_heads
    beta_alpha: Shapes = (
        {names.SSM_BA: (2 * v_heads, hidden)}
        if dims.fused_beta_alpha
        else {names.SSM_BETA: (v_heads, hidden), names.SSM_ALPHA: (v_heads, hidden)}
    )
    return {
        names.ATTN_QKV: (dims.gdn_channels, hidden),
        names.ATTN_GATE: (dims.value_dim, hidden),
        names.SSM_CONV1D: (dims.gdn_channels, dims.conv_kernel),
        names.SSM_DT: (v_heads,),
        names.SSM_A: (v_heads,),
        **beta_alpha,
        names.SSM_NORM: (dims.gdn_head_dim,),
        names.SSM_OUT: (hidden, dims.value_dim),
    }


def _ffn_shapes(dims: Dimensions, layer: int, present: Container[str]) -> Shapes:
    hidden, experts, width, shared = dims.hidden, dims.experts, dims.expert_ffn, dims.shared_ffn
    if not experts:
        return {
            names.FFN_GATE: (dims.ffn, hidden),
            names.FFN_UP: (dims.ffn, hidden),
            names.FFN_DOWN: (hidden, dims.ffn),
        }
    gate_up: Shapes = (
        {names.FFN_GATE_UP_EXPS: (experts, 2 * width, hidden)}
        if names.in_block(layer, names.FFN_GATE_UP_EXPS) in present
        else {names.FFN_GATE_EXPS: (experts, width, hidden), names.FFN_UP_EXPS: (experts, width, hidden)}
    )
    return {
        names.FFN_GATE_INP: (experts, hidden),
        **gate_up,
        names.FFN_DOWN_EXPS: (experts, hidden, width),
        names.FFN_GATE_INP_SHEXP: (hidden,),
        names.FFN_GATE_SHEXP: (shared, hidden),
        names.FFN_UP_SHEXP: (shared, hidden),
        names.FFN_DOWN_SHEXP: (hidden, shared),
    }
