"""The operators of the domain `trigraph`: a NumPy reference beside each kernel, and the library that hosts register."""

import ctypes
import os
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trigraph.models.errors import TrigraphError

DOMAIN = "trigraph"

_REMEDIES = {
    "cpu": "reinstall trigraph for this platform",
    "cuda": "install the wheel trigraph-cuda, or build it with nvcc: `make cuda` in a checkout",
}
ALL_SETS = "build all with `make .venv/.test`, or cmake -DTRIGRAPH_SETS=all"
_LIBRARY_NAMES = {"linux": "libtrigraph_{}.so", "darwin": "libtrigraph_{}.dylib", "win32": "trigraph_{}.dll"}


def library_path(provider: str = "cpu") -> Path:
    """The operator library that a host passes to `SessionOptions.register_custom_ops_library`.

    `TRIGRAPH_LIBRARY_DIR` names another folder to look in first. Raises TrigraphError when the library is not there.
    """
    if provider == "cuda":
        _check_versions()
    name = _LIBRARY_NAMES.get(sys.platform, _LIBRARY_NAMES["linux"]).format(provider)
    override = os.environ.get("TRIGRAPH_LIBRARY_DIR")
    folders = [override] if override else list(__path__)
    for folder in folders:
        path = Path(folder) / name
        if path.is_file():
            return path
    if override:
        raise TrigraphError(
            f"TRIGRAPH_LIBRARY_DIR is {override}, where there is no {name}; name the folder that has it, or unset the "
            "variable"
        )
    remedy = _REMEDIES.get(provider, f"there are libraries for {' and '.join(_REMEDIES)}")
    raise TrigraphError(f"operator library {name} not found in {', '.join(folders)}: {remedy}")


def _check_versions() -> None:
    """Raises TrigraphError where the package trigraph-cuda is of another version than trigraph."""
    try:
        ours, theirs = version("trigraph"), version("trigraph-cuda")
    except PackageNotFoundError:
        return
    if ours != theirs:
        raise TrigraphError(f"trigraph-cuda is of version {theirs} and trigraph of {ours}; install the same of both")


@cache
def _library(provider: str = "cpu") -> ctypes.CDLL:
    path = library_path(provider)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise TrigraphError(f"{path}: the operator library does not load ({error}); reinstall trigraph") from error


@cache
def instruction_set() -> str:
    """Name of the instruction set whose kernels run here: avx512, avx_vnni, avx2, i8mm, dotprod, neon or portable.

    The environment variable `TRIGRAPH_ISA` chooses one. Raises TrigraphError when the processor does not have it.
    """
    library = _library()
    library.trigraph_instruction_set.restype = ctypes.c_char_p
    name = str(library.trigraph_instruction_set().decode())
    if not name:
        wanted = os.environ.get("TRIGRAPH_ISA")
        if wanted in absent_sets():
            raise TrigraphError(f"TRIGRAPH_ISA={wanted}: this build has left that set out; {ALL_SETS}, or unset it")
        raise TrigraphError(f"TRIGRAPH_ISA={wanted}: this processor has no such instruction set; unset the variable")
    return name


def instruction_sets() -> tuple[str, ...]:
    """Names of all instruction sets with kernels that this processor can run, best first; the last is portable."""
    library = _library()
    if not hasattr(library, "trigraph_instruction_sets"):  # of an earlier patch version
        return (instruction_set(),)
    library.trigraph_instruction_sets.restype = ctypes.c_char_p
    return tuple(library.trigraph_instruction_sets().decode().split())


def absent_sets() -> tuple[str, ...]:
    """Names of the instruction sets that this processor could run, had the build of the library not left them out."""
    library = _library()
    if not hasattr(library, "trigraph_absent_sets"):  # of an earlier patch version
        return ()
    library.trigraph_absent_sets.restype = ctypes.c_char_p
    return tuple(library.trigraph_absent_sets().decode().split())


def host_experts() -> int:
    """The address of the CPU library's functions for experts that a GPU has not got. Raises TrigraphError without."""
    library = _library()
    function = getattr(library, "trigraph_host_experts", None)
    if function is None:
        raise TrigraphError("the operator library is too old to compute experts for a GPU; reinstall trigraph")
    function.restype = ctypes.c_void_p
    return int(function() or 0)


def read_rows() -> int:
    """The address of the CPU library's function that reads rows of a table for a GPU. Raises TrigraphError without."""
    function = library_function("trigraph_read_rows")
    if function is None:
        raise TrigraphError("the operator library is too old to read rows for a GPU; reinstall trigraph")
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def library_function(name: str) -> Any:
    """A C function of the CPU library; None where there is no library, or one of an earlier patch version."""
    try:
        return getattr(_library(), name, None)
    except TrigraphError:
        return None


def explain_bus_errors() -> None:
    """Let this process end with a sentence, not with a bare SIGBUS, when mapped weights are cut short under it.

    For programs: the handler replaces one that a host may have. Windows lets nobody cut a mapped file.
    """
    # Absent on Windows, and in a library of an earlier patch version.
    if explain := getattr(_library(), "trigraph_explain_bus_errors", None):
        explain()


@cache
def library_version(provider: str = "cpu") -> str:
    """Version that the operator library of an execution provider reports."""
    library = _library(provider)
    library.trigraph_version.restype = ctypes.c_char_p
    return str(library.trigraph_version().decode())
