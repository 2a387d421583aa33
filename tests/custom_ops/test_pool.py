"""Threads that do jobs, and what a GPU asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("sanitizer", [[], ["-fsanitize=thread"]], ids=["plain", "races"])
def test_jobs_and_mail_from_several_threads(tmp_path: Path, sanitizer: list[str]) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program, empty = tmp_path / "pool", tmp_path / "empty.cc"
    empty.write_text("int main() {}")
    flags = ["-std=c++17", "-O1", "-g", "-pthread", f"-I{ROOT / 'custom_ops'}", *sanitizer]
    if subprocess.run([compiler, *flags, empty, "-o", program], capture_output=True, check=False).returncode:
        pytest.skip("the compiler has no ThreadSanitizer")
    sources = [ROOT / "tests/custom_ops/pool.cc", ROOT / "custom_ops/pool.cc"]
    subprocess.run([compiler, *flags, *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
