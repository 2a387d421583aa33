"""The CUDA library as a C++ compiler builds it, with its kernels in the emulator: once for all tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
EMULATOR = ROOT / "build" / "cuda_emulator"


@contextmanager
def alone() -> Iterator[None]:
    """Tests run in several processes, which share these folders."""
    import fcntl  # of Linux and macOS

    EMULATOR.parent.mkdir(exist_ok=True)
    with (EMULATOR.parent / ".tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(source: str, out: Path, *options: str) -> None:
    """Builds a CMake project under tests/, with what pip and a C++ compiler bring."""
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    program = shutil.which("cmake", path=path) or "cmake"
    for arguments in (
        ["-S", str(ROOT / "tests" / source), "-B", str(out), "-G", "Ninja", *options],
        ["--build", str(out)],
    ):
        command = [program, *arguments]
        with alone():
            done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def build_emulator(operator_library: Path) -> Path:
    """A folder with the CUDA library, and the CPU library that exports need."""
    build("cuda_emulator", EMULATOR)
    copy = EMULATOR / "copy"
    with alone():
        shutil.copy(operator_library, copy)
        copy.replace(EMULATOR / operator_library.name)  # not written in place: a process may have it open
    return EMULATOR
