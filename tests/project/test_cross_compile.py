"""The operator library for other systems, compiled here with zig's clang; the one for Windows runs under wine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import onnxruntime as ort
import pytest

from cross_compile import TARGETS, build, compile_for
from support.cpp_host import BITS, export_for_host, host_arguments
from trigraph.custom_ops import instruction_sets

ROOT = Path(__file__).parents[2]
MAGIC = {"linux-aarch64": b"\x7fELF", "macos-arm64": b"\xcf\xfa\xed\xfe", "windows-x64": b"MZ"}

pytestmark = pytest.mark.slow


def cross_compiled(name: str) -> Path:
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed: no compiler for other systems")
    if os.environ.get("TRIGRAPH_TEST_CROSS") != "1":
        pytest.skip("TRIGRAPH_TEST_CROSS=1 compiles for other systems, which takes minutes for each")
    try:
        return compile_for(name, ROOT / "build" / "cross" / name)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{name} does not compile: {error}")


@pytest.mark.parametrize("name", TARGETS)
def test_the_library_compiles(name: str) -> None:
    content = cross_compiled(name).read_bytes()
    assert content.startswith(MAGIC[name]) and b"RegisterCustomOps" in content


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the C++ host for Windows, the operator library, and ONNX Runtime's own DLL."""
    if shutil.which("wine") is None:
        pytest.skip("wine is not installed: nothing runs programs for Windows here")
    library, folder = cross_compiled("windows-x64"), tmp_path_factory.mktemp("windows")
    shutil.copy(library, folder)
    wheel = ("--only-binary=:all:", "--platform=win_amd64", "--python-version=3.13", f"onnxruntime=={ort.__version__}")
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *wheel], check=False
    )
    if fetched.returncode:
        pytest.skip(f"no wheel of onnxruntime {ort.__version__} for Windows can be had")
    (archive,) = folder.glob("*.whl")
    (folder / "onnxruntime.dll").write_bytes(zipfile.ZipFile(archive).read("onnxruntime/capi/onnxruntime.dll"))
    # The wheel has no import library.
    (folder / "onnxruntime.def").write_text("LIBRARY onnxruntime.dll\nEXPORTS\nOrtGetApiBase\n")
    imports = ("dlltool", "-m", "i386:x86-64", "-d", "onnxruntime.def", "-l", "onnxruntime.lib")
    subprocess.run([sys.executable, "-m", "ziglang", *imports], cwd=folder, check=True)
    host = ROOT / "examples" / "hosts" / "cpp"
    build("windows-x64", host, folder, ONNXRUNTIME_LIBRARY=folder / "onnxruntime.lib", CMAKE_CXX_FLAGS="-Werror")
    return folder


@pytest.mark.parametrize("instructions", instruction_sets(), ids="windows-x64-{}".format)
def test_windows_computes_the_recorded_bits(
    instructions: str, windows: Path, tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    package = export_for_host(tiny_gguf, windows / instructions)
    environment = os.environ | {
        "TRIGRAPH_ISA": instructions,
        "WINEPREFIX": str(windows / "prefix"),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree,mshtml=",  # which would ask to be downloaded
    }
    command = ("wine", "trigraph_host.exe", *host_arguments(package, Path("trigraph_cpu.dll")))
    done = subprocess.run(command, cwd=windows, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert BITS in done.stderr
