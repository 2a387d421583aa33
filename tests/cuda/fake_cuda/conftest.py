"""Fixtures of what runs on the fake device; tests/cuda/test_fake_cuda.py starts it."""

import ctypes
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice
from support.models.hollow import write_hollow
from trigraph.custom_ops import library_path
from trigraph.runtime import Engine, load
from trigraph.runtime.device.parts import moving_experts


@pytest.fixture(scope="session")
def gpu() -> FakeDevice:
    """The device. Each test asks it for the events of what it did itself."""
    return FakeDevice(library_path("cuda"))


@pytest.fixture(scope="session", autouse=True)
def no_counts() -> None:
    """Packages that tests share stay as they are, also where programs end."""
    pytest.MonkeyPatch().setattr(moving_experts, "write_counts", lambda path, counts: None)


@pytest.fixture(scope="session")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 35B-A3B with its 40 layers and the MTP head; its weights are holes in a file."""
    return write_hollow("qwen3.6-35b-a3b", tmp_path_factory.mktemp("hollow") / "model.gguf")


@pytest.fixture(scope="session")
def large(hollow: Path) -> Engine:
    """The same, loaded on a device that computes nothing, so that its weights need not be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "memmove", lambda *_: None)
        return load(hollow, device="cuda", context=4096, sequences=2)
