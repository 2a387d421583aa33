"""Builds one ONNX graph: readable names, and a type and shape for every value.

Custom operators have no shape inference in most hosts, so each node states what it makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.package.manifest import CONTRACT_VERSION

# The lowest opset with RMSNormalization, and the IR version that came with it.
OPSET = 23
IR_VERSION = 11

FLOAT = ir.DataType.FLOAT
INT32 = ir.DataType.INT32
INT64 = ir.DataType.INT64

Dims = Sequence[int | str | ir.SymbolicDim] | ir.Shape
"""Static dimensions, and names of those that a host chooses."""


class GraphBuilder:
    """An ONNX graph in the making. Node and value names must be unique; a node's single output carries its name."""

    def __init__(self, name: str, features: Sequence[str] = ()) -> None:
        """`features`: those of the package, for hosts that do not read its manifest."""
        self._metadata = {"trigraph.features": ",".join(features)}
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET, DOMAIN: 1}, name=name)
        self._names: set[str] = set()
        self._results: list[ir.Value] = []
        self._state: list[ir.Value] = []

    def input(self, name: str, dtype: ir.DataType, dims: Dims) -> ir.Value:
        """A graph input."""
        value = self.value(name, dtype, dims)
        self._graph.inputs.append(value)
        return value

    def output(self, value: ir.Value, name: str, *, state: bool = False) -> None:
        """Make `value` a graph output under a public name. State comes after the results in any case."""
        self._claim(name)
        value.name = name
        (self._state if state else self._results).append(value)

    def initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        """A constant under the tensor's name; the one of that name if the graph has it already."""
        name = str(tensor.name)
        if name in self._graph.initializers:
            return self._graph.initializers[name]
        value = self.value(name, tensor.dtype, tensor.shape.numpy())
        value.const_value = tensor
        self._graph.register_initializer(value)
        return value

    def constant(self, name: str, content: npt.ArrayLike, dtype: npt.DTypeLike) -> ir.Value:
        """A small constant that is stored in the graph itself; there is one for each `name`."""
        return self.initializer(ir.tensor(np.asarray(content, dtype), name=name))

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        dims: Dims | None = None,
        dtype: ir.DataType | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """A node with one output; `dims` and `dtype` are the first input's unless given. None is an absent input."""
        if (like := inputs[0]) is None:
            raise RuntimeError(f"node {name!r} has no first input")
        output = self.value(name, dtype or _dtype(like), shape(like) if dims is None else dims)
        self.multi_node(op_type, inputs, name, [output], domain, **attributes)
        return output

    def multi_node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        outputs: Sequence[ir.Value],
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """A node whose outputs, made by `value`, are given. Attributes that are None are left out."""
        given = {key: item for key, item in attributes.items() if item is not None}
        self._graph.append(ir.node(op_type, inputs, given, domain=domain, outputs=outputs, name=name))

    def proto(self) -> onnx.ModelProto:
        """The finished model, once; weights stay references to their files."""
        self._graph.outputs.extend(self._results + self._state)
        model = ir.Model(
            self._graph,
            ir_version=IR_VERSION,
            producer_name="trigraph",
            model_version=CONTRACT_VERSION,
            metadata_props=self._metadata,
        )
        return ir.serde.serialize_model(model)

    def value(self, name: str, dtype: ir.DataType, dims: Dims) -> ir.Value:
        """A value under a new name, for `multi_node` to make."""
        self._claim(name)
        return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims))

    def _claim(self, name: str) -> None:
        if name in self._names:
            raise RuntimeError(f"two values are named {name!r}")
        self._names.add(name)


def shape(value: ir.Value) -> ir.Shape:
    """The shape of a value of this builder."""
    if value.shape is None:
        raise RuntimeError(f"value {value.name!r} has no shape")
    return value.shape


def _dtype(value: ir.Value) -> ir.DataType:
    if value.dtype is None:
        raise RuntimeError(f"value {value.name!r} has no type")
    return value.dtype
