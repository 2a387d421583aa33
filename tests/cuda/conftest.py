"""What tests of CUDA share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.devices.emulator import build_emulator


@pytest.fixture(scope="module")
def emulator(operator_library: Path) -> Path:
    """A folder with the CUDA library as a C++ compiler builds it, and the CPU library that exports need."""
    if sys.platform != "linux":
        pytest.skip("the emulator of CUDA needs Linux")
    return build_emulator(operator_library)
