"""PagedKVWrite and PagedAttention as the plugin's PagedAttention, which does both in float16, or on the CPU.

The plugin's reads after it has written. So a sequence may be cut into pieces, each of which sees those before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from trigraph.custom_ops import DOMAIN
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.webgpu.lowering.builder import MICROSOFT, Array, Builder
from trigraph.runtime.device.webgpu.lowering.rows import Rows, as_int64, starts_and_ends

_PIECE = 16
"""Most rows of a sequence that queries are taken of together: the plugin has one way for one row, one for 2 to 31, and
another one for more."""
_STEP = "cu_seqlens", "past_lens", "page_table"


class Attention:
    """The attention layers of a graph."""

    def __init__(self, b: Builder, nodes: list[NodeProto], rows: Rows, positions: int, *, has_half: bool) -> None:
        """`positions`: how many there are at most in a text; `has_half`: whether the GPU has float16."""
        self._b, self._rows, self._positions, self._has_half = b, rows, positions, has_half
        self._read = {node.input[2] for node in nodes if node.op_type == "PagedAttention"}
        self._entries: dict[str, list[str]] = {}  # by written keys: keys and values of the step, and the caches

    def write(self, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
        """PagedKVWrite: on the GPU a node of its own only where no queries read what it writes."""
        key, value, norm, *caches = inputs[:5]
        cache = self._b.inputs[caches[0]].type.tensor_type
        *_, heads, dim = (size.dim_value for size in cache.shape.dim)
        if cache.elem_type == TensorProto.FLOAT:
            raise TrigraphError(
                "webgpu has no keys and values of float32: export with kv_type=f16 or q8_0, or use device=cpu"
            )
        if cache.elem_type != TensorProto.FLOAT16 or not self._has_half:
            own = [self._rows.cut(key), self._rows.cut(value), norm, *caches, *_STEP]
            self._b.ops("PagedKVWrite", *own, outs=outputs, domain=DOMAIN, **attributes)
            return
        keys, values = self._heads(key, norm, heads, dim, attributes), self._half(value)
        self._entries[outputs[0]] = [keys, values, *caches]
        if outputs[0] not in self._read:
            self._attend(keys, heads, outputs, attributes)  # rows that nobody reads

    def attend(self, inputs: list[str], outputs: list[str], attributes: dict[str, Any], last: str | None) -> None:
        """PagedAttention of rows with their gates side by side; `last`: which rows are wanted, where not all are."""
        b, (dim,) = self._b, self._b.dims(inputs[1])
        if inputs[2] not in self._entries:
            own = b.op("PagedAttention", self._rows.cut(inputs[0]), *inputs[1:4], *_STEP, domain=DOMAIN, **attributes)
            b.op("Gather", own, last or self._rows.numbers, out=outputs[0])
            return
        heads = b.widths[outputs[0]] // dim
        both = b.op("Reshape", inputs[0], b.ints(0, heads, 2 * dim))
        query, gate = b.ops("Split", both, outs=b.names(2), axis=2, num_outputs=2)
        queries = self._heads(query, inputs[1], heads, dim, attributes)
        rows = b.op("Cast", self._attend(queries, heads, inputs[2:4], attributes), to=TensorProto.FLOAT)
        mixed = rows, b.op("Sigmoid", b.op("Reshape", gate, b.ints(0, heads * dim)))
        if last is None:
            b.op("Mul", *mixed, out=outputs[0])
        else:
            b.op("Gather", b.op("Mul", *mixed), last, out=outputs[0])

    def _attend(self, queries: str, heads: int, written: list[str], attributes: dict[str, Any]) -> str:
        """Rows of heads [T, heads * dim] over the written caches, float16."""
        b, (keys, values, *caches) = self._b, self._entries[written[0]]
        key_heads = b.inputs[caches[0]].type.tensor_type.shape.dim[2].dim_value
        *pieces, longest = self._pieces()
        inputs = [queries, keys, values, *caches, *pieces, *self._turns(attributes), *[""] * 6, longest]
        sizes = {"num_heads": heads, "kv_num_heads": key_heads, "do_rotary": 1}
        return b.ops("PagedAttention", *inputs, outs=[b.name(), *written], domain=MICROSOFT, **sizes)[0]

    def _heads(self, rows: str, norm: str, heads: int, dim: int, attributes: dict[str, Any]) -> str:
        """Normed heads of the step's own rows, float16 [T, heads * dim]."""
        b = self._b
        split = b.op("Reshape", rows, b.ints(0, heads, dim))
        normed = b.op("RMSNormalization", split, b.vector(norm), axis=-1, epsilon=attributes["eps"])
        return self._half(b.op("Reshape", normed, b.ints(0, heads * dim)))

    def _half(self, rows: str) -> str:
        return self._b.op("Cast", rows, to=TensorProto.FLOAT16)

    def _pieces(self) -> list[str]:
        """Where rows belong, with each sequence cut into pieces: first rows, past lengths, pages, longest lengths.

        Rows that stand in the place of missing ones are pieces, too, which write what is there.
        """
        b, rows = self._b, self._rows

        def made() -> list[str]:
            sequences, places = rows.places
            count, (starts, ends) = b.op("Shape", sequences), starts_and_ends(b)
            cut = b.op("Equal", b.op("Mod", places, b.number(_PIECE)), b.number(0))
            numbers = b.op("Range", b.number(0), b.op("Squeeze", count, b.ints(0)), b.number(1))
            first = b.op("NonZero", b.op("Or", cut, b.op("GreaterOrEqual", numbers, rows.count)))
            first = b.op("Squeeze", first, b.ints(0))
            owners, past = b.op("Gather", sequences, first), as_int64(b, "past_lens")
            lengths = b.op("Add", b.op("Gather", past, owners), b.op("Gather", places, first))
            own = b.op("Sub", ends, starts)
            longest = b.op("ReduceMax", own, keepdims=1), b.op("ReduceMax", b.op("Add", own, past), keepdims=1)
            rows_together = b.op("Max", b.op("Min", longest[0], b.ints(_PIECE)), b.ints(2))
            values = b.op("Concat", first, count, axis=0), lengths, b.op("Concat", rows_together, longest[1], axis=0)
            bounds, lengths, most = (b.op("Cast", value, to=TensorProto.INT32) for value in values)
            return [bounds, lengths, b.op("Gather", "page_table", owners), most]

        pieces: list[str] = b.once("pieces", made)
        return pieces

    def _turns(self, attributes: Any) -> list[str]:
        """Cosines and sines of all positions, float16 [positions, rope_dims / 2]."""

        def make(_: Array) -> list[Array]:
            from trigraph.custom_ops.paged_attention.reference import turns  # imports gguf, which takes long

            positions = np.arange(self._positions)[:, None]
            return [turn.astype(np.float16) for turn in turns(positions, attributes)]

        table = TensorProto.FLOAT16, (self._positions, attributes["rope_dims"] // 2)
        return self._b.weight("turns", {"cosines": table, "sines": table}, make)
