"""Fixtures of what runs on the fake device; tests/cuda/test_fake_cuda.py starts it."""

import gc
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice
from support.models.hollow import load_hollow, write_hollow
from trigraph.custom_ops import library_path
from trigraph.runtime import Engine
from trigraph.runtime.device.parts import moving_experts
from trigraph.runtime.scheduler import driver


@pytest.fixture(scope="session")
def fake_device() -> FakeDevice:
    """The device, as tests before left it."""
    return FakeDevice(library_path("cuda"))


@pytest.fixture
def gpu(fake_device: FakeDevice) -> FakeDevice:
    """The device, without what nobody has any more. Each test asks it for the events of what it did itself.

    A thread that has woken its reader holds the engine for a moment longer, and a cycle does until the collector comes.
    Engines that tests share take steps afterwards, and no requests.
    """
    driver.close_all()
    gc.collect()
    return fake_device


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
    """The same, loaded on a device that computes nothing."""
    return load_hollow(hollow, context=4096, sequences=2)
