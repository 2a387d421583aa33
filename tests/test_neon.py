"""The NEON kernels of row products have the bits of the portable ones; by an emulator of ARM (qemu-user) elsewhere."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from support.block_weights import BLOCK, TYPES, MatMul, activations, random_blocks, weights
from support.operators import same_bits
from support.row_bits import portable_kernels
from trigraph.models.synth.blocks import HALVES

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = {1: (77, 1027), 32: (288, 1056), 256: (512, 2304)}
SIZES = ((1, 17), (2, 4), (3, 5), (4, 1), (8, 3), (9, 6), (40, 7))  # activation rows and weight rows


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
    options = ["-std=c++17", "-O1", "-static", "-ffp-contract=off", f"-march=armv8.2-a{request.param}"]
    defines = ["-DTRIGRAPH_ISA=neon", "-DTRIGRAPH_ISA_neon=1"]
    subprocess.run([compiler, *options, *defines, f"-I{kernels}", *map(str, sources), "-o", str(out)], check=True)
    return [emulator, str(out)]


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("type", TYPES)
def test_equal_to_portable(program: list[str], type: str, kind: str) -> None:
    with portable_kernels():
        matmul = MatMul(type, kind, library="cpu")
    cases, expected = [], []
    for index, (m, n) in enumerate(SIZES):
        width = WIDTHS[BLOCK[type]][index % 2]
        stored = [weights(type, n, width)]
        if type in HALVES:  # every code, scale and min, and halves of any size
            stored.append(random_blocks(type, n, width // BLOCK[type], seed=index))
        for weight in stored:
            x = activations(m, width)
            expected.append(matmul(x, weight))
            head = f"{type} {kind}\n{n} {width} {m} {weight.nbytes // n}\n".encode()
            cases.append(head + weight.tobytes() + x.tobytes())
    done = subprocess.run(program, input=b"".join(cases), capture_output=True, check=True)
    found = np.split(np.frombuffer(done.stdout, np.float32), np.cumsum([y.size for y in expected])[:-1])
    for one, other in zip(found, expected, strict=True):
        assert same_bits(one.reshape(other.shape), other), other.shape
