"""An operator's function body in ONNX Runtime, without the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from support.operators.run import ONNX_TYPE
from trigraph.custom_ops import DOMAIN
from trigraph.custom_ops.bodies import bodies, overload

Array = NDArray[Any]


class Body:
    """One operator's body in a session of its own: called with arrays, like `Operator`."""

    def __init__(
        self, op_type: str, inputs: Sequence[Any], output_types: Sequence[Any], attributes: Mapping[str, Any]
    ) -> None:
        names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
        while not names[-1]:
            names.pop()
        self._names = [name for name in names if name]
        outputs = [f"y{i}" for i in range(len(output_types))]
        node = helper.make_node(op_type, names, outputs, domain=DOMAIN, **attributes)
        node.overload = overload(attributes, len(names))
        graph = helper.make_graph(
            [node],
            op_type,
            [
                helper.make_tensor_value_info(name, _type(x), [None] * _values(x).ndim)
                for name, x in zip(self._names, (x for x in inputs if x is not None), strict=True)
            ],
            [
                helper.make_tensor_value_info(name, ONNX_TYPE[np.dtype(dtype)], None)
                for name, dtype in zip(outputs, output_types, strict=True)
            ],
        )
        functions = {
            (function.name, function.overload): function for function in bodies(op_type, attributes, len(names))
        }
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11, functions=list(functions.values()))
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def __call__(self, *inputs: Any) -> list[Array]:
        given = [x for x in inputs if x is not None]
        feeds = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(_values(x)), _type(x))
            for name, x in zip(self._names, given, strict=True)
        }
        return [value.numpy() for value in self._session.run_with_ort_values(None, feeds)]


def _type(x: Any) -> int:
    return TensorProto.BFLOAT16 if isinstance(x, tuple) else ONNX_TYPE[x.dtype]


def _values(x: Any) -> Array:
    return np.asarray(x[1] if isinstance(x, tuple) else x)
