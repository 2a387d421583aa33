"""What nvcc makes of the CUDA kernels: registers, spills, and the loads of their machine code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "custom_ops"
FILES = sorted(path for path in SOURCES.rglob("*.cu") if path.stem not in ("device_error", "library", "memory"))
"""Those with kernels."""
TOOLS = ("nvcc", "cuobjdump", "nvdisasm")
FLAGS = ("-fatbin", "-O3", "-std=c++17", "-fmad=false", "-DTRIGRAPH_ISA=cuda", '-DTRIGRAPH_VERSION="0"')
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_.a-z]*)\s*([^;]*);")
_REGISTER = re.compile(r"\bR(\d+)(\.64)?\b")
_WIDTH = {"8": 1, "U8": 1, "S8": 1, "16": 2, "U16": 2, "S16": 2, "64": 8, "128": 16}


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

    def bytes_in_flight(self) -> int:
        """The most bytes that a thread has asked global memory for when it first needs some of them.

        In the order of the code: an instruction that reads a loaded register waits for it and for all loads before.
        """
        waiting: list[tuple[int, int, int]] = []  # first register, registers, bytes
        most = 0
        for name, operands in self.instructions:
            target, _, rest = operands.partition(",")
            used = {int(number) for number, _ in _REGISTER.findall(operands if not name.startswith("LDG") else rest)}
            used |= {int(number) + 1 for number, wide in _REGISTER.findall(rest) if wide}
            hit = max((i for i, (first, n, _) in enumerate(waiting) if used & set(range(first, first + n))), default=-1)
            if hit >= 0:
                most = max(most, sum(size for _, _, size in waiting))
                del waiting[: hit + 1]
            if name.startswith("LDG") and (match := _REGISTER.search(target)):
                size = _bytes(name)
                waiting.append((int(match[1]), max(1, size // 4), size))
        return most


def tool(name: str) -> str | None:
    """A program of the CUDA toolkit: from the Python packages of the extra `sass`, or on PATH."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    return shutil.which(name, path=os.pathsep.join((str(packages), os.environ["PATH"])))


def missing() -> list[str]:
    """The programs that are not here."""
    return [name for name in TOOLS if tool(name) is None]


def kernels(sources: Sequence[Path], architecture: str, folder: Path) -> list[Kernel]:
    """The kernels of some .cu files as nvcc compiles them for an architecture (`sm_90`)."""
    return read(compiled(sources, {architecture: architecture.replace("sm", "compute")}, folder), architecture)


def compiled(sources: Sequence[Path], architectures: Mapping[str, str], folder: Path) -> list[Path]:
    """A fatbin of each .cu file: for each architecture, machine code from the PTX of a virtual one."""
    folder.mkdir(parents=True, exist_ok=True)
    options = [f"-gencode=arch={virtual},code={real}" for real, virtual in architectures.items()]

    def compile(source: Path) -> Path:
        out = folder / f"{source.parent.name}-{source.stem}.fatbin"
        _run("nvcc", *options, *FLAGS, f"-I{SOURCES}", str(source), "-o", str(out))
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile, sources))


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


def _bytes(operation: str) -> int:
    return next((_WIDTH[part] for part in operation.split(".")[1:] if part in _WIDTH), 4)


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
