"""A GPU for the tests of WebGPU: a real one, or one in software that WebGPU takes for one.

Chromium's SwiftShader is found where no other driver is chosen; it has no 16-bit floats. Mesa's lavapipe has them:
VK_ICD_FILENAMES=/usr/share/vulkan/icd.d/lvp_icd.json, Mesa 24 or newer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from trigraph.custom_ops import DOMAIN, library_path
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.webgpu.lowering.graph import lower
from trigraph.runtime.device.webgpu.plugin import Plugin, open_plugin

_CHROMIUM = (Path("/usr/lib/chromium"), Path("/opt/google/chrome"))
Arrays = Mapping[str, np.ndarray]


@cache
def _opened(kind: int) -> Plugin | str:
    """The first GPU that computes with a type, or why there is none."""
    os.environ.setdefault("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
    drivers = [driver for folder in _CHROMIUM if (driver := folder / "vk_swiftshader_icd.json").exists()]
    if "VK_ICD_FILENAMES" not in os.environ and drivers:
        os.environ["VK_ICD_FILENAMES"] = str(drivers[0])
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(drivers[0].with_name("libvulkan.so.1")))  # for the plugin, which looks for it by its name
    try:
        plugin = open_plugin(0)
    except TrigraphError as error:
        return str(error)
    reason = plugin.failure(kind)
    return plugin if reason is None else f"the GPU has no {helper.tensor_dtype_to_np_dtype(kind)}: {reason}"


def plugin(kind: int = TensorProto.FLOAT) -> Plugin:
    """The GPU. Skips the test where none computes with a type."""
    found = _opened(kind)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def run(op: str, inputs: Arrays, outputs: Mapping[str, int], **attributes: Any) -> dict[str, np.ndarray]:
    """What the GPU makes of one operator of ours, lowered: `outputs` by name, of these types.

    Inputs come in the operator's order; those whose names end with "weight" are stored tensors.
    """
    on, stored = plugin(), {name: array for name, array in inputs.items() if name.endswith("weight")}
    given = {name: array for name, array in inputs.items() if name not in stored}
    node = helper.make_node(
        op, [name for name in inputs if name != "input_ids"], [*outputs], domain=DOMAIN, **attributes
    )
    ports = [_port(name, array) for name, array in given.items()]
    made = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([node], op, ports, made, tensors)
    session = session_of(helper.make_model(graph, opset_imports=opsets, ir_version=11), on)
    io = session.io_binding()
    for arg in session.get_inputs():
        io.bind_cpu_input(arg.name, given[arg.name])
    for name in outputs:
        io.bind_output(name)
    session.run_with_iobinding(io)
    return {name: value.numpy() for name, value in zip(outputs, io.get_outputs(), strict=True)}


def _port(name: str, array: np.ndarray) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, [f"{name}.rows", *array.shape[1:]])


def session_of(model: ModelProto, on: Plugin) -> ort.InferenceSession:
    """A session for a graph of ours, which is lowered, with its weights."""
    values = {}
    for weight in lower(model, 64).values():
        stored = np.empty(0) if weight.tensor is None else numpy_helper.to_array(weight.tensor)
        for name, array in zip(weight.names, weight.make(stored), strict=True):
            values[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), on.memory, 0)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library_path("cpu")))
    return on.session(model.SerializeToString(), options, values)
