"""ONNX Runtime's WebGPU plugin: the library, the GPU that it finds, and sessions on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from trigraph.models.errors import TrigraphError

PROVIDER = "WebGpuExecutionProvider"
_LEAST = (1, 30)  # version of ONNX Runtime whose plugins have CausalConvWithState of columns
_REMEDY = "pip install onnxruntime-ep-webgpu, or use device=cpu"


class Plugin:
    """One GPU of those that the plugin shows."""

    memory = "webgpu"
    """What ONNX Runtime calls the GPU's memory."""

    def __init__(self, device: ort.OrtEpDevice) -> None:
        self._device = device
        self._graphs: dict[tuple[str, int], ort.InferenceSession] = {}

    @property
    def description(self) -> str:
        """The plugin, ONNX Runtime and the GPU, by their versions and numbers, and whether that has float16."""
        gpu = self._device.device
        version = self._device.ep_metadata.get("version", "of no version")
        name = f"{gpu.metadata.get('Description') or gpu.vendor} {gpu.vendor_id:04x}:{gpu.device_id:04x}"
        half = "" if self.has_half else " without float16"
        return f"WebGPU plugin {version}, ONNX Runtime {ort.__version__}, {name}{half}"

    def session(self, model: bytes, options: ort.SessionOptions, weights: Mapping[str, ort.OrtValue]) -> WebGpuSession:
        """A session for a model, whose inputs of these names are weights. Raises what ONNX Runtime raises."""
        options.add_provider_for_devices([self._device], {})
        return WebGpuSession(model, options, weights)

    def failure(self, kind: int) -> str | None:
        """Why the GPU cannot compute with a type; None where it can.

        Memory must not be asked for before: ONNX Runtime ends the process where no GPU can be used.
        """
        try:
            ones = np.ones(4, helper.tensor_dtype_to_np_dtype(kind))
            self.graph("Add", ("one", "other"), kind).run(None, {"one": ones, "other": ones})
        except Exception as error:  # ONNX Runtime's exceptions share no base class of their own
            return str(error).strip().splitlines()[0]
        return None

    @cached_property
    def has_half(self) -> bool:
        """Whether the GPU and its driver have 16-bit floats."""
        return self.failure(TensorProto.FLOAT16) is None

    def graph(self, op: str, inputs: Sequence[str], kind: int) -> ort.InferenceSession:
        """A session for one operator on tensors of a type; inputs named "numbers" are int64."""
        if (op, kind) not in self._graphs:
            types = [TensorProto.INT64 if name == "numbers" else kind for name in inputs]
            given = [helper.make_tensor_value_info(*each, None) for each in zip(inputs, types, strict=True)]
            made = helper.make_tensor_value_info("result", kind, None)
            graph = helper.make_graph([helper.make_node(op, inputs, ["result"])], op, given, [made])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
            options = ort.SessionOptions()
            options.log_severity_level = 4
            self._graphs[op, kind] = self.session(model.SerializeToString(), options, {})
        return self._graphs[op, kind]


class WebGpuSession(ort.InferenceSession):  # type: ignore[misc]
    """A session that has its weights, which are inputs of its graph, in all bindings."""

    def __init__(self, model: bytes, options: ort.SessionOptions, weights: Mapping[str, ort.OrtValue]) -> None:
        super().__init__(model, options, enable_fallback=0)
        self._weights = {arg.name: weights[arg.name] for arg in super().get_inputs() if arg.name in weights}

    def get_inputs(self) -> list[ort.NodeArg]:
        """The inputs of a step."""
        return [arg for arg in super().get_inputs() if arg.name not in self._weights]

    def io_binding(self) -> WebGpuBinding:
        """A binding with the weights."""
        io = WebGpuBinding(self)
        for name, value in self._weights.items():
            io.bind_ortvalue_input(name, value)
        return io

    def run_with_iobinding(self, iobinding: WebGpuBinding, run_options: ort.RunOptions | None = None) -> None:
        """Runs the graph on what now is in the host's memory."""
        for name, value in iobinding.host_inputs.items():
            iobinding.bind_ortvalue_input(name, value)
        super().run_with_iobinding(iobinding, run_options)


class WebGpuBinding(ort.IOBinding):  # type: ignore[misc]
    """A binding that knows which inputs lie in the host's memory: ONNX Runtime copies them when they are bound."""

    def __init__(self, session: WebGpuSession) -> None:
        super().__init__(session)
        self.host_inputs: dict[str, ort.OrtValue] = {}


def open_plugin(number: int) -> Plugin:
    """The GPU of that number. Raises TrigraphError that says what is missing."""
    found = _devices()
    if not found:
        raise TrigraphError("the WebGPU plugin finds no GPU; install its driver (Vulkan on Linux), or use device=cpu")
    if number >= len(found):
        raise TrigraphError(f"there is no webgpu:{number}; the plugin shows {len(found)}, numbered from 0")
    plugin = Plugin(found[number])
    if (reason := plugin.failure(TensorProto.FLOAT)) is not None:
        raise TrigraphError(f"WebGPU cannot use the GPU ({reason}); check its driver, or use device=cpu")
    return plugin


@cache
def _devices() -> Sequence[ort.OrtEpDevice]:
    """The GPUs that the plugin shows, once it is registered: to register it again would break sessions."""
    if tuple(map(int, ort.__version__.split(".")[:2])) < _LEAST:
        raise TrigraphError(f"webgpu needs ONNX Runtime 1.30 or newer, and this is {ort.__version__}; {_REMEDY}")
    try:
        import onnxruntime_ep_webgpu
    except ImportError:
        raise TrigraphError(f"ONNX Runtime's WebGPU plugin is not installed; {_REMEDY}") from None
    try:
        ort.register_execution_provider_library("webgpu", onnxruntime_ep_webgpu.get_library_path())
    except Exception as error:
        raise TrigraphError(f"ONNX Runtime's WebGPU plugin does not load ({error}); {_REMEDY}") from error
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
