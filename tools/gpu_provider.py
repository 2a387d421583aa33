"""ONNX Runtime's CUDA provider, made small enough to carry: tools/gpu_pack.py calls `small_provider`.

The runtime's graphs consist of operators of ours, so none of the provider's own kernels, 260 MB, is launched. And its
libraries of linear algebra are loaded and never called: stand-ins of them will do.
"""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

STAND_INS = ("libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10")
MAGIC = struct.pack("<I", 0xBA55ED50)
BINARY = struct.Struct("<4sHHQ")
"""Of a fat binary: magic number, version, bytes of this header and of what follows."""


def small_provider(source: Path, target: Path) -> int:
    """Writes a copy of a provider without machine code; how many fat binaries it had.

    The copy finds libraries that are not loaded yet in its own folder.
    """
    data = bytearray(source.read_bytes())
    found = without_kernels(data)
    target.write_bytes(data)
    subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", target], check=True)
    return found


def without_kernels(data: bytearray) -> int:
    """Zeroes the fat binaries, and so their magic numbers: gpu_provider.c keeps CUDA from reading them; how many."""
    found = at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        _, version, header, size = BINARY.unpack_from(data, at)
        end = at + header + size
        if (version, header) != (1, BINARY.size) or end > len(data):  # the same bytes by chance
            at += len(MAGIC)
            continue
        data[at:end] = bytes(end - at)
        found, at = found + 1, end
    return found


def make_stand_ins(provider: Path, folder: Path) -> None:
    """Compiles libraries with all functions that a provider is linked with: they make handles, and do nothing else."""
    listed = ("nm", "-D", "--undefined-only", str(provider))
    linked = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    for library in STAND_INS:
        names = re.findall(rf" (\w+)@{re.escape(library)}$", linked, re.MULTILINE)
        code = "".join(f"long {name}(void** first) {{ {_body(name)} }}\n" for name in names)
        versions = folder / "versions"
        versions.write_text(f"{library} {{ global: *; }};\n")
        linker = f"-Wl,-soname,{library},--version-script={versions}"
        command = ("cc", "-shared", "-fPIC", linker, "-x", "c", "-", "-o", str(folder / library))
        subprocess.run(command, input=code, text=True, check=True)
        versions.unlink()


def _body(name: str) -> str:
    if "Create" in name:
        return "*first = first; return 0;"
    if re.search("Destroy|SetStream|MathMode", name):
        return "return 0;"
    return 'return (long)"not there";' if "String" in name or "StatusName" in name else "return 15;"
