"""What a GPU needs on this machine: a driver, and an ONNX Runtime that can use it."""

from __future__ import annotations

import contextlib
import ctypes
import io as text_io
import sys
from functools import cache

import onnx
import onnxruntime as ort

from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.cuda.library import PROVIDER


def check_driver() -> None:
    """Raises TrigraphError where no NVIDIA driver is installed."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        raise TrigraphError(
            f"no NVIDIA driver is installed ({name} is missing); install it, or use device=cpu"
        ) from None


@cache
def check_provider() -> None:
    """Raises TrigraphError where ONNX Runtime cannot use a GPU."""
    remedy = "pip install 'onnxruntime-gpu[cuda]', or use device=cpu"
    if PROVIDER not in ort.get_available_providers():
        raise TrigraphError(f"this ONNX Runtime has no CUDA provider: pip uninstall onnxruntime, then {remedy}")
    with contextlib.redirect_stdout(text_io.StringIO()):  # it prints what it does not find
        ort.preload_dlls()
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "probe", [value], [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[PROVIDER], enable_fallback=0)
        providers = session.get_providers()
    except Exception as error:  # ONNX Runtime's exceptions share no base class of their own
        raise TrigraphError(f"ONNX Runtime's CUDA provider does not load ({error}); {remedy}") from error
    if PROVIDER not in providers:
        raise TrigraphError(f"ONNX Runtime's CUDA provider does not load: libraries of CUDA are missing; {remedy}")


def captured_at(setting: str) -> int:
    """What TRIGRAPH_CUDA_GRAPHS says. Raises TrigraphError for another word."""
    if not (setting.isascii() and setting.isdigit()):
        raise TrigraphError(
            f"TRIGRAPH_CUDA_GRAPHS is {setting!r}; it must be the run at which a step is captured, or 0 for none"
        )
    return int(setting)
