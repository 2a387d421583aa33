"""ONNX Runtime's CUDA provider, made small enough to carry: tools/gpu_pack.py calls `small_provider`.

The runtime's graphs consist of operators of ours, so that of the provider's own kernels, 260 MB, those of a few native
operators are launched. And its libraries of linear algebra are loaded and never called: stand-ins of them will do.
"""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

KEPT = (b"ScatterND", b"GatherKernel", b"ConcatKernel")
"""What the names of the kernels contain that stay."""
STAND_INS = ("libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10")
MAGIC = struct.pack("<I", 0xBA55ED50)
BINARY, ENTRY = struct.Struct("<4sHHQ"), struct.Struct("<HHIQI8xI")
"""Of a fat binary: magic number, version, bytes of this header and of all entries. Of an entry: kind (2: machine code),
version, bytes of this header and of the code, how many of these are compressed (0: none is), and the architecture."""


def small_provider(source: Path, target: Path, architecture: int) -> int:
    """Writes a copy of a provider without the machine code that is not needed; how many fat binaries stay.

    The copy finds libraries that are not loaded yet in its own folder.
    """
    data = bytearray(source.read_bytes())
    kept = without_kernels(data, architecture)
    target.write_bytes(data)
    subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", target], check=True)
    return kept


def without_kernels(data: bytearray, architecture: int) -> int:
    """Zeroes the machine code that is not needed; how many fat binaries stay.

    The magic number of others is zeroed, too: gpu_provider.c keeps CUDA from reading them.
    """
    kept = 0
    for start, end, entries in fat_binaries(data):
        stay = {begin for begin, stop, code in entries if _stays(data, begin, stop, code, architecture)}
        kept += bool(stay)
        zeroed = [(begin, stop) for begin, stop, _ in entries if begin not in stay] if stay else [(start, end)]
        for begin, stop in zeroed:
            data[begin:stop] = bytes(stop - begin)
    return kept


def fat_binaries(data: bytearray) -> Iterator[tuple[int, int, list[tuple[int, int, tuple[int, int, int]]]]]:
    """Where each begins and ends, and so of the code of its entries, with its kind, architecture, compressed bytes."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        _, version, header, size = BINARY.unpack_from(data, at)
        end = at + header + size
        if (version, header) != (1, BINARY.size) or end > len(data):  # the same bytes by chance
            at += len(MAGIC)
            continue
        entries, place = [], at + header
        while place < end:
            kind, _, head, length, packed, architecture = ENTRY.unpack_from(data, place)
            entries.append((place + head, place + head + length, (kind, architecture, packed)))
            place += head + length
        yield at, end, entries
        at = end


def _stays(data: bytearray, begin: int, stop: int, code: tuple[int, int, int], architecture: int) -> bool:
    kind, own, packed = code
    if (kind, own) != (2, architecture):
        return False
    found = bytes(data[begin:stop])
    found = _unpacked(found[:packed]) if packed else found
    return any(name in found for name in KEPT)


def _unpacked(code: bytes) -> bytes:
    """Code that nvcc has compressed with Zstandard."""
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_getFrameContentSize.restype = zstd.ZSTD_decompress.restype = ctypes.c_size_t
    size = zstd.ZSTD_getFrameContentSize(code, ctypes.c_size_t(len(code)))
    out = ctypes.create_string_buffer(size)
    if zstd.ZSTD_decompress(out, ctypes.c_size_t(size), code, ctypes.c_size_t(len(code))) != size:
        raise RuntimeError("this machine code is not compressed as it says")
    return out.raw


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
