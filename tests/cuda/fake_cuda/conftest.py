"""Fixtures of what runs on the fake device; tests/cuda/test_fake_cuda.py starts it."""

import pytest

from support.fake_cuda import FakeDevice
from trigraph.custom_ops import library_path


@pytest.fixture(scope="session")
def gpu() -> FakeDevice:
    """The device. Each test asks it for the events of what it did itself."""
    return FakeDevice(library_path("cuda"))
