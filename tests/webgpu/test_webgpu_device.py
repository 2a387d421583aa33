"""What `--device webgpu` needs, and says where that is missing; memory of the device."""

import sys
from collections.abc import Iterator

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

from support.devices.webgpu import plugin
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.choice import DEVICES, open_device
from trigraph.runtime.device.webgpu import plugin as plugins
from trigraph.runtime.device.webgpu.array import WebGpuArray


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """GPUs are looked for as if for the first time."""
    monkeypatch.setattr(plugins, "_devices", plugins._devices.__wrapped__)
    yield monkeypatch


def test_no_plugin(anew: pytest.MonkeyPatch) -> None:
    anew.setitem(sys.modules, "onnxruntime_ep_webgpu", None)
    with pytest.raises(
        TrigraphError, match=r"plugin is not installed; pip install onnxruntime-ep-webgpu, or use device"
    ):
        open_device("webgpu")


def test_old_onnxruntime(anew: pytest.MonkeyPatch) -> None:
    anew.setattr(ort, "__version__", "1.29.1")
    with pytest.raises(TrigraphError, match=r"webgpu needs ONNX Runtime 1.30 or newer, and this is 1.29.1"):
        open_device("webgpu")


def test_no_gpu(anew: pytest.MonkeyPatch) -> None:
    anew.setattr(plugins, "_devices", tuple)
    with pytest.raises(TrigraphError, match="the WebGPU plugin finds no GPU; install its driver"):
        open_device("webgpu")


def test_no_such_number() -> None:
    plugin()
    with pytest.raises(TrigraphError, match="there is no webgpu:99; the plugin shows"):
        open_device("webgpu:99")


def test_auto_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its texts may be others."""
    monkeypatch.setattr(plugins, "_devices", lambda: pytest.fail("GPUs were looked for"))
    assert open_device("auto").name in ("cpu", "cuda")
    assert "webgpu" in DEVICES


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows(dtype: type[np.floating]) -> None:
    on = plugin(TensorProto.FLOAT16 if dtype == np.float16 else TensorProto.FLOAT)
    array, known = WebGpuArray(on, (5, 2, 3), np.dtype(dtype)), np.arange(30).reshape(5, 2, 3).astype(dtype)
    array[np.arange(5)] = known
    assert (len(array), array.nbytes) == (5, known.nbytes)
    array.copy_row(1, 3)
    array[0] = known[4]
    known[3], known[0] = known[1], known[4]
    assert (np.asarray(array) == known).all()
    assert (array[2] == known[2]).all() and array[2].shape == (2, 3)
    assert (array[[4, 1]] == known[[4, 1]]).all() and (array[:2] == known[:2]).all()
