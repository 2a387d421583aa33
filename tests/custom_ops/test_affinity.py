"""Threads of the operators move off the processor of the thread that they help, and no further."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.models.packages import Packages

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are moved on Linux only")

_RUN = """
import json, os, sys
from trigraph.runtime import Options, Sampling, load
engine = load(sys.argv[1], threads=2, context=256)
generation = engine.generate("In the beginning", Options(Sampling(temperature=0.0), max_tokens=24, ignore_eos=True))
generation.run()
allowed = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]
print(json.dumps({"ids": generation.ids, "caller": sorted(os.sched_getaffinity(0)), "allowed": allowed}))
"""


def processors() -> list[int]:
    found = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    if len(found) < 2:
        pytest.skip("needs two processors")
    return found


def test_a_thread_moves_only_off_its_callers_processor(tmp_path: Path) -> None:
    processors()
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path / "affinity"
    sources = [ROOT / "tests/custom_ops/affinity.cc", ROOT / "custom_ops/affinity.cc"]
    flags = ["-std=c++17", "-pthread", f"-I{ROOT / 'custom_ops'}"]
    subprocess.run([compiler, *flags, *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_sets_of_processors_and_ids_after_steps(packages: Packages) -> None:
    """A set of one processor stays as it is, and gives the same ids with two threads on it."""
    package, (first, second, *_) = packages("trained", "Q8_0"), processors()

    def run(*allowed: int) -> dict[str, Any]:
        command = [sys.executable, "-c", _RUN, str(package)]
        limit = partial(os.sched_setaffinity, 0, allowed)
        done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=limit)
        return dict(json.loads(done.stdout))

    two, one = run(first, second), run(first)
    assert one["ids"] == two["ids"] and len(two["ids"]) == 24
    assert one["caller"] == [first] and two["caller"] == [first, second]
    assert all(allowed == [first] for allowed in one["allowed"])
    assert all(allowed in ([first], [second], [first, second]) for allowed in two["allowed"])
