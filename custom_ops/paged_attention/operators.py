"""The operators of this family: their costs, and their function bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trigraph.custom_ops.cost import Cost, Node, Tensor, Workload
from trigraph.custom_ops.operator_type import Operator

if TYPE_CHECKING:
    from trigraph.custom_ops.scripting import Function


_GROUPS = 8  # input


def _position_bytes(cache: Tensor) -> int:
    """A key or value of one position, in a cache [pages, page size, kv heads, elements or bytes of a head]."""
    return int(cache.dims[2]) * int(cache.dims[3]) * cache.element_bytes


def _write_cost(node: Node, work: Workload) -> Cost:
    """A key and a value are written for each row."""
    written = _position_bytes(node.given(3)) + _position_bytes(node.given(4))
    return Cost(bytes=written * node.given(0).rows(work))


def _attention_cost(node: Node, work: Workload) -> Cost:
    """The keys and values of each sequence are read once; each row multiplies with both at every position.

    Queries are int8 where the cache has blocks. Where rows choose groups, a sequence's rows are taken to choose the
    same ones.
    """
    out, seen = node.outputs[0], min(work.context, node.attributes.get("window") or work.context)
    if (group := node.attributes.get("group")) is not None:
        seen = min(seen, (int(node.given(_GROUPS).dims[1]) + 1) * group)
    read = (_position_bytes(node.given(2)) + _position_bytes(node.given(3))) * seen * work.sequences
    products = out.item_elements * seen * out.rows(work)
    if "type" in node.attributes:
        return Cost(bytes=read, float32_products=products, int8_products=products)
    return Cost(bytes=read, float32_products=2 * products)


def _write_body(attributes: Mapping[str, Any], inputs: int) -> Function | None:
    """None with blocks, or positions of images."""
    from trigraph.custom_ops.paged_attention.function import paged_kv_write

    return None if "type" in attributes or inputs > 8 else paged_kv_write


def _attention_body(attributes: Mapping[str, Any], inputs: int) -> Function | None:
    """None with blocks, positions of images, or groups, and for rows that see others or have no gate."""
    from trigraph.custom_ops.paged_attention.function import paged_attention

    return None if {"type", "gate", "causal", "window"} & {*attributes} or inputs > 7 else paged_attention


OPERATORS = (
    Operator("PagedKVWrite", _write_cost, _write_body),
    Operator("PagedAttention", _attention_cost, _attention_body),
)
