"""The NEON kernels of row products, run in a software emulator (qemu-user) where a cross compiler is there too."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from support.block_weights import TYPES, activations, weights, widths
from trigraph.custom_ops.block_matmul.reference import block_matmul

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", params=["", "+dotprod"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs tests/neon_rows.cc, built for plain NEON and with the dot product instructions."""
    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("NEON is this machine's own instruction set: the operator tests run it")
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if not compiler or not emulator:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu qemu-user)")
    out = tmp_path_factory.mktemp("neon") / "neon_rows"
    kernels = ROOT / "custom_ops"
    sources = [ROOT / "tests" / "neon_rows.cc", *(kernels / "blocks").glob("*.cc")]
    options = ["-std=c++17", "-O0", "-static", "-ffp-contract=off", f"-march=armv8.2-a{request.param}"]
    defines = ["-DTRIGRAPH_ISA=neon", "-DTRIGRAPH_ISA_neon=1"]
    subprocess.run([compiler, *options, *defines, f"-I{kernels}", *map(str, sources), "-o", str(out)], check=True)
    return [emulator, str(out)]


def test_row_products(program: list[str]) -> None:
    cases, count = [], 0
    for type in TYPES:
        for kind in ("float32", "int8"):
            for m, n, width in zip((1, 9), (17, 3), widths(type)[-2:], strict=True):
                weight, x = weights(type, n, width), activations(m, width)
                expected = block_matmul(x, weight, type, kind)
                head = f"{type} {kind}\n{n} {width} {m} {weight.nbytes // n}\n".encode()
                cases.append(head + weight.tobytes() + x.tobytes() + np.ascontiguousarray(expected).tobytes())
                count += 1
    result = subprocess.run(program, input=b"".join(cases), capture_output=True, check=True, env=dict(os.environ))
    lines = result.stdout.decode().splitlines()
    assert len(lines) == count
    for line in lines:
        type, kind, error, bits = line.split()
        assert float(error) <= 4e-6 and bits == "same", line
