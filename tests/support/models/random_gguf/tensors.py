"""Names, shapes and kinds of the tensors of a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from support.models.random_gguf.geometry import Architecture, Geometry


@dataclass(frozen=True)
class Item:
    """A tensor: what it is filled with, and for a matrix the standard deviation."""

    name: str
    shape: tuple[int, ...]
    fill: Literal["matrix", "float", "norm", "dt", "a"]
    std: float = 0.0


HALF_NORMS = {"*.attn_norm.*": "F16"}
"""Types of vectors that an export converts; `with_half_norms` makes room for them."""


def with_half_norms(item: Item) -> list[Item]:
    """An `edit` of `write_random` for files with HALF_NORMS."""
    return [Item(item.name, item.shape, "matrix", 0.1) if ".attn_norm." in item.name else item]


def tensors(
    architecture: Architecture, g: Geometry, recurrent: Sequence[bool], mtp: bool, tied: bool
) -> Iterator[Item]:
    """Every tensor, in the order of the file; `recurrent` has an entry for each trunk layer."""
    yield _matrix("token_embd", g.vocab, g.hidden, std=1.0)
    yield _norm("output_norm", g.hidden)
    if not tied:
        yield _matrix("output", g.vocab, g.hidden, std=2.5 * g.hidden**-0.5)
    for layer, is_recurrent in enumerate([*recurrent, *[False] * mtp]):
        block = f"blk.{layer}"
        yield _norm(f"{block}.attn_norm", g.hidden)
        yield _norm(f"{block}.post_attention_norm", g.hidden)
        yield from _gdn(block, architecture, g) if is_recurrent else _attention(block, g)
        yield from _dense(block, g) if architecture == "qwen35" else _experts(block, g)
    if mtp:
        block = f"blk.{g.layers}.nextn"
        yield _matrix(f"{block}.eh_proj", g.hidden, 2 * g.hidden)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            yield _norm(f"{block}.{name}", g.hidden)


def _matrix(name: str, *shape: int, std: float | None = None) -> Item:
    return Item(f"{name}.weight", shape, "matrix", shape[-1] ** -0.5 if std is None else std)


def _norm(name: str, size: int) -> Item:
    return Item(f"{name}.weight", (size,), "norm")


def _attention(block: str, g: Geometry) -> Iterator[Item]:
    heads, kv_heads = g.heads * g.head_dim, g.kv_heads * g.head_dim
    yield _matrix(f"{block}.attn_q", 2 * heads, g.hidden)
    yield _matrix(f"{block}.attn_k", kv_heads, g.hidden)
    yield _matrix(f"{block}.attn_v", kv_heads, g.hidden)
    yield _matrix(f"{block}.attn_output", g.hidden, heads)
    yield _norm(f"{block}.attn_q_norm", g.head_dim)
    yield _norm(f"{block}.attn_k_norm", g.head_dim)


def _gdn(block: str, architecture: Architecture, g: Geometry) -> Iterator[Item]:
    key_dim, value_dim = g.k_heads * g.gdn_dim, g.v_heads * g.gdn_dim
    yield _matrix(f"{block}.attn_qkv", 2 * key_dim + value_dim, g.hidden)
    yield _matrix(f"{block}.attn_gate", value_dim, g.hidden)
    yield Item(f"{block}.ssm_conv1d.weight", (2 * key_dim + value_dim, 4), "float", 0.5)
    yield Item(f"{block}.ssm_dt.bias", (g.v_heads,), "dt")
    yield Item(f"{block}.ssm_a", (g.v_heads,), "a")
    if architecture == "qwen3next":
        yield _matrix(f"{block}.ssm_ba", 2 * g.v_heads, g.hidden)
    else:
        yield _matrix(f"{block}.ssm_beta", g.v_heads, g.hidden)
        yield _matrix(f"{block}.ssm_alpha", g.v_heads, g.hidden)
    yield _norm(f"{block}.ssm_norm", g.gdn_dim)
    yield _matrix(f"{block}.ssm_out", g.hidden, value_dim)


def _dense(block: str, g: Geometry) -> Iterator[Item]:
    yield _matrix(f"{block}.ffn_gate", g.ffn, g.hidden)
    yield _matrix(f"{block}.ffn_up", g.ffn, g.hidden)
    yield _matrix(f"{block}.ffn_down", g.hidden, g.ffn)


def _experts(block: str, g: Geometry) -> Iterator[Item]:
    yield Item(f"{block}.ffn_gate_inp.weight", (g.experts, g.hidden), "float", 2 * g.hidden**-0.5)
    yield _matrix(f"{block}.ffn_gate_exps", g.experts, g.expert_ffn, g.hidden)
    yield _matrix(f"{block}.ffn_up_exps", g.experts, g.expert_ffn, g.hidden)
    yield _matrix(f"{block}.ffn_down_exps", g.experts, g.hidden, g.expert_ffn)
    yield Item(f"{block}.ffn_gate_inp_shexp.weight", (g.hidden,), "float", g.hidden**-0.5)
    yield _matrix(f"{block}.ffn_gate_shexp", g.shared_ffn, g.hidden)
    yield _matrix(f"{block}.ffn_up_shexp", g.shared_ffn, g.hidden)
    yield _matrix(f"{block}.ffn_down_shexp", g.hidden, g.shared_ffn)
