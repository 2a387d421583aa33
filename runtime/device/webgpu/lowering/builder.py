"""A graph in the making: its nodes, its constants, and the weights that it takes as inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Array = NDArray[Any]
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Weight:
    """What graphs take as inputs in the place of a tensor of the package's files."""

    parts: tuple[ValueInfoProto, ...]
    make: Callable[[Array], Sequence[Array]]
    """The parts, from what is stored."""
    tensor: TensorProto | None = None
    """What is stored; None for what is computed from nothing."""

    @property
    def names(self) -> list[str]:
        """The names of the parts."""
        return [part.name for part in self.parts]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(
            math.prod(dim.dim_value for dim in part.type.tensor_type.shape.dim)
            * helper.tensor_dtype_to_np_dtype(part.type.tensor_type.elem_type).itemsize
            for part in self.parts
        )


class Builder:
    """Collects what replaces the nodes of a model's graph."""

    def __init__(self, model: ModelProto) -> None:
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self.inputs = {value.name: value for value in model.graph.input}
        values = (*model.graph.value_info, *model.graph.output)
        self.widths = {
            v.name: v.type.tensor_type.shape.dim[-1].dim_value for v in values if v.type.tensor_type.shape.dim
        }
        """By value, its last dimension."""
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, Weight] = {}
        self._constants: dict[tuple[Any, ...], TensorProto] = {}
        self._memo: dict[Any, Any] = {}
        self._count = 0

    def op(self, type: str, /, *inputs: str, out: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Adds a node with one output; its name."""
        return self.ops(type, *inputs, outs=[out or self.name()], domain=domain, **attributes)[0]

    def ops(
        self, type: str, /, *inputs: str, outs: Sequence[str], domain: str = "", **attributes: Any
    ) -> Sequence[str]:
        """Adds a node; the names of its outputs."""
        self.nodes.append(
            helper.make_node(type, inputs, outs, f"lowered.{len(self.nodes)}", domain=domain, **attributes)
        )
        return outs

    def name(self) -> str:
        """A name for a value."""
        self._count += 1
        return f"value.{self._count}"

    def names(self, count: int) -> list[str]:
        """Names for values."""
        return [self.name() for _ in range(count)]

    def constant(self, array: Array) -> str:
        """A constant of the graph."""
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = numpy_helper.from_array(array, f"constant.{len(self._constants)}")
        return self._constants[key].name

    def ints(self, *values: int) -> str:
        """A constant int64 [count]."""
        return self.constant(np.array(values, np.int64))

    def number(self, value: int) -> str:
        """A constant int64 without dimensions."""
        return self.constant(np.array(value, np.int64))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` adds, once for a key."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def dims(self, name: str) -> tuple[int, ...]:
        """The shape of a stored tensor."""
        return tuple(self.tensors[name].dims)

    def vector(self, name: str, *dims: int) -> str:
        """A stored tensor of float32, in another shape if one is given."""
        shape = dims or self.dims(name)
        parts = {"vector": (TensorProto.FLOAT, shape)}
        return self.weight(name, parts, lambda stored: [stored.reshape(shape)], self.tensors[name])[0]

    def weight(
        self,
        key: str,
        parts: Mapping[str, tuple[int, tuple[int, ...]]],
        make: Callable[[Array], Sequence[Array]],
        tensor: TensorProto | None = None,
    ) -> list[str]:
        """Inputs in the place of a stored tensor: by name, type and shape. One key is the same in all graphs."""
        infos = tuple(helper.make_tensor_value_info(f"{key}:{part}", *each) for part, each in parts.items())
        return self.weights.setdefault(key, Weight(infos, make, tensor)).names

    def replace(self, model: ModelProto) -> None:
        """Puts all of it into the model; stored tensors stay that nodes still read."""
        graph, read = model.graph, {name for node in self.nodes for name in node.input}
        kept = [tensor for name, tensor in self.tensors.items() if name in read]
        for field, values in (("node", self.nodes), ("initializer", [*kept, *self._constants.values()])):
            graph.ClearField(field)
            getattr(graph, field).extend(values)
        graph.ClearField("value_info")
        graph.input.extend(part for weight in self.weights.values() for part in weight.parts)
        if all(opset.domain != MICROSOFT for opset in model.opset_import):
            model.opset_import.add(domain=MICROSOFT, version=1)
