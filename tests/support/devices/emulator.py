"""The CUDA library as a C++ compiler builds it, with its kernels in the emulator: once for all tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
EARLY = "TRIGRAPH_EARLY" in os.environ
"""Whether the emulator looks for what launches that begin early may not do: `make early`."""
EMULATOR = ROOT / "build" / ("early" if EARLY else "cuda_emulator")


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keeps other processes of tests from building there."""
    out.parent.mkdir(exist_ok=True)
    with out.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
    with alone(EMULATOR):
        build("cuda/emulator", EMULATOR, f"-DEARLY={'ON' if EARLY else 'OFF'}")
        copy = EMULATOR / "copy"
        shutil.copy(operator_library, copy)
        copy.replace(EMULATOR / operator_library.name)  # not written in place: this process may have it open
    return EMULATOR
