"""The operator library for other systems, compiled here with zig's clang."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from cross_compile import TARGETS, compile_for

MAGIC = {"linux-aarch64": b"\x7fELF", "macos-arm64": b"\xcf\xfa\xed\xfe", "windows-x64": b"MZ"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_the_library_compiles(name: str, tmp_path: Path) -> None:
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed: no compiler for other systems")
    if os.environ.get("TRIGRAPH_TEST_CROSS") != "1":
        pytest.skip("TRIGRAPH_TEST_CROSS=1 compiles for other systems, which takes minutes for each")
    try:
        library = compile_for(name, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{name} does not compile: {error}")
    content = library.read_bytes()
    assert content.startswith(MAGIC[name]) and b"RegisterCustomOps" in content
