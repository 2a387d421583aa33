"""Products with weights as MatMulNBits and MatMul."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from trigraph.models.errors import TrigraphError
from trigraph.models.tensor_types import FLOAT_TYPES, dequantize
from trigraph.runtime.device.webgpu.blocks import LAYOUTS, repack
from trigraph.runtime.device.webgpu.lowering.builder import MICROSOFT, Array, Builder


def product(b: Builder, x: str, weight: str, type: str, out: str) -> None:
    """x [rows, D] times the transpose of a stored matrix of a ggml type."""
    if type in FLOAT_TYPES:
        b.op("MatMul", x, _transposed(b, weight, type), out=out)
        return
    if (layout := LAYOUTS.get(type)) is None:
        known = ", ".join([*FLOAT_TYPES, *LAYOUTS])
        raise TrigraphError(f"{weight} is of type {type}, and webgpu has products with {known}; use device=cpu")
    rows, row_bytes = b.dims(weight)
    codes, scales = layout.packed_shapes(rows, row_bytes)
    width = scales[1] * layout.block
    parts = {"codes": (TensorProto.UINT8, codes), "scales": (TensorProto.FLOAT, scales)}
    if layout.has_offsets:
        parts["offsets"] = TensorProto.FLOAT, scales[::-1]
    key = f"{weight}[{rows}]"  # the MTP head may read fewer rows of the output matrix
    names = b.weight(key, parts, lambda stored: repack(stored, type), b.tensors[weight])
    sizes: dict[str, Any] = {"bits": layout.bits, "block_size": layout.block, "N": rows, "K": width}
    if not layout.has_offsets:
        b.op("MatMulNBits", x, *names, out=out, domain=MICROSOFT, **sizes)
        return
    by_scale = b.op("MatMulNBits", x, *names[:2], domain=MICROSOFT, **sizes)
    b.op("Add", by_scale, b.op("MatMul", _sums(b, x, layout.block), names[2]), out=out)


def _transposed(b: Builder, weight: str, type: str) -> str:
    """A matrix of floats as float32 [D, rows]."""

    def make(stored: Array) -> list[Array]:
        return [np.ascontiguousarray(dequantize(stored.view(np.uint8) if type == "BF16" else stored, type).T)]

    rows, width = b.dims(weight)
    parts = {"transposed": (TensorProto.FLOAT, (width, rows))}
    return b.weight(f"{weight}[{rows}]", parts, make, b.tensors[weight])[0]


def _sums(b: Builder, x: str, block: int) -> str:
    """Sums of each row's blocks [rows, blocks], once for all matrices that a row meets."""

    def made() -> str:
        return b.op("ReduceSum", b.op("Reshape", x, b.ints(0, -1, block)), b.ints(2), keepdims=0)

    return str(b.once((x, block), made))


def block_matmul(b: Builder, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
    """BlockMatMul: the products of rows with several matrices."""
    for weight, type, out in zip(inputs[1:], attributes["types"].split(","), outputs, strict=True):
        product(b, inputs[0], weight, type, out)


def gated_block_matmul(b: Builder, inputs: list[str], outputs: list[str], attributes: dict[str, Any]) -> None:
    """GatedBlockMatMul: the product of silu(gate) * up."""
    gate, up, weight = inputs
    if not up or "scale" in attributes:
        raise TrigraphError("webgpu has no products of residual streams; use device=cpu")
    gated = b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), up)
    product(b, gated, weight, attributes["type"], outputs[0])
