"""What nvcc makes of the CUDA kernels: registers, spills, and the loads of their machine code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "custom_ops"
FILES = sorted(path for path in SOURCES.rglob("*.cu") if path.stem not in ("device_error", "library", "memory"))
"""Those with kernels."""
PLANES = SOURCES / "blocks" / "cuda" / "plane_products.cu"
"""Which has code for sm_90a alone."""
ARCHITECTURES = {"sm_80": "compute_80", "sm_89": "compute_80", "sm_90": "compute_90"}
"""And the virtual ones whose PTX they take: that of 8.9 is that of 8.0, as no code asks which of the two it is."""
TOOLS = ("nvcc", "cuobjdump", "nvdisasm")
FLAGS = ("-fatbin", "-O3", "-std=c++17", "-fmad=false", "-DTRIGRAPH_ISA=cuda", '-DTRIGRAPH_VERSION="0"')
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_.a-z]*)\s*([^;]*);")


@dataclass(frozen=True)
class Kernel:
    """A kernel for one architecture."""

    name: str
    """In C++, with template arguments, without namespaces and parameters."""
    registers: int
    """Of a thread."""
    shared: int
    """Static bytes of a block."""
    instructions: tuple[tuple[str, str], ...]
    """Operation and operands."""

    def count(self, operation: str) -> int:
        """Instructions whose operation begins so."""
        return sum(name.startswith(operation) for name, _ in self.instructions)


def tool(name: str) -> str | None:
    """A program of the CUDA toolkit: from the Python packages of the extra `sass`, or on PATH."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    return shutil.which(name, path=os.pathsep.join((str(packages), os.environ["PATH"])))


def missing() -> list[str]:
    """The programs that are not here."""
    return [name for name in TOOLS if tool(name) is None]


def compiled(sources: Sequence[Path], folder: Path) -> list[Path]:
    """A fatbin of each .cu file: for each architecture, machine code from the PTX of a virtual one.

    One that lies in the folder is not made again until a file changes that it was made of.
    """
    folder.mkdir(parents=True, exist_ok=True)
    common = [f"-gencode=arch={virtual},code={real}" for real, virtual in ARCHITECTURES.items()]

    def compile(source: Path) -> Path:
        out = folder / f"{source.parent.name}-{source.stem}.fatbin"
        options = ["-gencode=arch=compute_90a,code=sm_90a", "-DTRIGRAPH_SM_90A=1"] if source == PLANES else common
        if not _is_current(out, out.with_suffix(".d")):
            listed = ("-MD", "-MF", str(out.with_suffix(".d")))
            _run("nvcc", *options, *FLAGS, *listed, f"-I{SOURCES}", str(source), "-o", str(out))
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile, sources))


def _is_current(out: Path, listed: Path) -> bool:
    """Whether no file that the compiler has listed for it, nor these flags, is newer."""
    if not out.exists() or not listed.exists():
        return False
    _, _, names = listed.read_text().replace("\\\n", " ").partition(" : ")
    made_of = [Path(__file__), *map(Path, names.split())]
    return all(path.exists() and path.stat().st_mtime < out.stat().st_mtime for path in made_of)


def read(fatbins: Sequence[Path], architecture: str) -> list[Kernel]:
    """Resources and instructions of each kernel for an architecture."""
    found: list[Kernel] = []
    for fatbin in fatbins:
        usage = _run("cuobjdump", "-res-usage", "-arch", architecture, str(fatbin))
        resources = {
            name: (int(registers), int(shared))
            for name, registers, shared in re.findall(r"Function (\S+):\s+REG:(\d+) .*?SHARED:(\d+)", usage)
        }
        for part in _run("cuobjdump", "-sass", "-arch", architecture, str(fatbin)).split("Function : ")[1:]:
            name, *lines = part.splitlines()
            matches = (_INSTRUCTION.match(line) for line in lines)
            code = tuple((match[1], match[2]) for match in matches if match)
            found.append(Kernel(name, *resources[name], code))
    names = _demangled([kernel.name for kernel in found])
    return [replace(kernel, name=plain_name(name)) for kernel, name in zip(found, names, strict=True)]


def _demangled(symbols: Sequence[str]) -> list[str]:
    text = "\n".join(symbols)
    return subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True).stdout.splitlines()


def plain_name(symbol: str) -> str:
    """`few_products<2, Plain, F32>` of a whole signature."""
    text = re.sub(r"trigraph::\w+::|\(anonymous namespace\)::", "", symbol).removeprefix("void ")
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth:
            return text[:at]
    return text


def _run(name: str, *arguments: str) -> str:
    """A program's output. nvdisasm, which cuobjdump calls, lies beside it."""
    program = tool(name) or name
    path = os.pathsep.join((str(Path(tool("nvdisasm") or "").parent), os.environ["PATH"]))
    done = subprocess.run(
        [program, *arguments], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
