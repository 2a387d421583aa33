"""Compiles the operator library for other systems, with zig's clang (the package `ziglang`): see TARGETS.

Usage: python tools/cross_compile.py TARGET... [--jobs N]; the libraries are left in build/cross/TARGET.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Target(NamedTuple):
    """A system, as zig and CMake name it, and the library that comes of it."""

    zig: str
    system: str
    processor: str
    library: str


TARGETS = {
    "linux-aarch64": Target("aarch64-linux-gnu.2.28", "Linux", "aarch64", "libtrigraph_cpu.so"),
    "macos-arm64": Target("aarch64-macos.13.0", "Darwin", "arm64", "libtrigraph_cpu.dylib"),
    "windows-x64": Target("x86_64-windows-gnu", "Windows", "AMD64", "trigraph_cpu.dll"),
}


# zig names processors in its own way: -march=armv8.2-a+dotprod is -mcpu=generic+v8_2a+dotprod.
_COMPILER = """\
#!/bin/sh
for word; do
  shift
  case $word in -march=armv8.2-a*) word="-mcpu=generic+v8_2a${{word#-march=armv8.2-a}}" ;; esac
  set -- "$@" "$word"
done
exec "{python}" -m ziglang c++ -target {target} "$@"
"""


def main() -> None:
    """Compiles for the targets that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="+", choices=TARGETS)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    for name in options.targets:
        library = compile_for(name, ROOT / "build" / "cross" / name, options.jobs)
        print(f"{name}: {library.stat().st_size:,} bytes in {library}")


def compile_for(name: str, folder: Path, jobs: int = 1) -> Path:
    """The operator library for a target."""
    build(name, ROOT / "custom_ops", folder, jobs)
    return folder / TARGETS[name].library


def build(name: str, source: Path, folder: Path, jobs: int = 1, **others: object) -> None:
    """Builds a CMake project for a target, with `others` for its settings."""
    if find_spec("ziglang") is None:
        raise SystemExit("ziglang is not installed: pip install ziglang")
    target = TARGETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    compiler = folder / "zig-c++"
    compiler.write_text(_COMPILER.format(python=sys.executable, target=target.zig))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or "cmake"
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": target.processor,
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",
        "CMAKE_INSTALL_NAME_TOOL": "true",  # of macOS, which CMake wants to know and nothing here needs
        "CMAKE_OSX_SYSROOT": "/",
    } | others
    given = [f"-D{name}={value}" for name, value in settings.items()]
    subprocess.run([cmake, "-S", source, "-B", folder, *given], check=True)
    subprocess.run([cmake, "--build", folder, "--parallel", str(jobs)], check=True)


if __name__ == "__main__":
    main()
