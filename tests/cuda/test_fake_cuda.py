"""ONNX Runtime's real CUDA provider, on a device that is not there (tests/cuda/fake_cuda), with our kernels emulated.

What needs no GPU to be known: where nodes go, what a step launches, allocates and waits for, what a captured graph
runs, and that whole texts have the CPU's bits.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from support.devices.emulator import EARLY, build, build_emulator

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "cuda" / "fake_cuda"
EAGER, CAPTURED = {"TRIGRAPH_CUDA_GRAPHS": "0"}, {"TRIGRAPH_CUDA_GRAPHS": "1"}
SMALL = {"TRIGRAPH_EMULATED_MULTIPROCESSORS": "16", "TRIGRAPH_EMULATED_SHARED_BYTES": str(226 << 10)}
"""An H200 of 16 multiprocessors: work is shared out to fewer blocks, each of which takes time here."""


@pytest.fixture(scope="module")
def fake(operator_library: Path) -> dict[str, str]:
    """The environment of a process that runs on the fake device. Built with what pip and a C++ compiler bring."""
    provider = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if not provider.exists():
        pytest.skip("this onnxruntime has no CUDA provider for Linux; onnxruntime-gpu has it")
    out = ROOT / "build" / "fake_cuda"
    build("cuda/fake_cuda", out, f"-DPROVIDER={provider}")
    libraries = build_emulator(operator_library)
    modules = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
    return {"LD_LIBRARY_PATH": str(out), "TRIGRAPH_LIBRARY_DIR": str(libraries), "PYTHONPATH": modules}


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        ("nodes", {}),
        ("launches rounds blocks", EAGER | {"TRIGRAPH_FAKE_CUDA": "dry"}),
        ("texts", SMALL),
        pytest.param(
            "receipts",
            {},
            marks=pytest.mark.skipif("TRIGRAPH_RECEIPTS" not in os.environ, reason="takes long; TRIGRAPH_RECEIPTS=8"),
        ),
        pytest.param("early", SMALL, marks=pytest.mark.skipif(not EARLY, reason="`make early` asks for it")),
        ("captures interrupted", {}),
        ("bursts waits shares", {"TRIGRAPH_FAKE_CUDA": "dry"}),
        ("contexts", EAGER | {"TRIGRAPH_FAKE_CUDA": "dry"}),
        ("second parts cards", {"TRIGRAPH_FAKE_DEVICES": "3"}),
        ("weights", {}),
        ("experts moves moved shortages", {}),
        ("streamed", {"TRIGRAPH_FAKE_DEVICES": "2"}),
        ("prompts", EAGER | {"TRIGRAPH_FAKE_CUDA": "dry"}),
        ("layers", {}),
        pytest.param("stages", {"TRIGRAPH_FAKE_CUDA": "dry"}, marks=pytest.mark.slow),
        ("streams", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "eager" if EAGER.items() <= value.items() else "captured",
)
def test_on_the_fake_device(fake: dict[str, str], files: str, settings: dict[str, str]) -> None:
    """Runs files of tests/cuda/fake_cuda."""
    paths = [str(FOLDER / f"{file}.py") for file in files.split()]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *paths]
    environment = os.environ | fake | CAPTURED | settings
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[1-9]\d* passed", done.stdout) and "skipped" not in done.stdout, done.stdout
