"""The CUDA library as a C++ compiler builds it, with its kernels in the emulator: once for all tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
EMULATOR = ROOT / "build" / "cuda_emulator"


def build(source: str, out: Path, *options: str) -> None:
    """Builds a CMake project under tests/, with what pip and a C++ compiler bring."""
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    for command in (
        ["cmake", "-S", str(ROOT / "tests" / source), "-B", str(out), "-G", "Ninja", *options],
        ["cmake", "--build", str(out)],
    ):
        program = shutil.which(command[0], path=path) or command[0]
        environment = os.environ | {"PATH": path}
        done = subprocess.run([program, *command[1:]], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def build_emulator(operator_library: Path) -> Path:
    """A folder with the CUDA library, and the CPU library that exports need."""
    build("cuda/emulator", EMULATOR)
    copy = EMULATOR / "copy"
    shutil.copy(operator_library, copy)
    copy.replace(EMULATOR / operator_library.name)  # not written in place: this process may have it open
    return EMULATOR
