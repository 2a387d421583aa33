"""The NEON kernels have the bits of the portable ones; by an emulator of ARM (qemu-user) elsewhere."""

import os
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

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "custom_ops"
PRODUCTS = ("frequent_kernels.cc", "interleaved_kernels.cc", "rare_kernels.cc")
WIDTHS = {1: (77, 1027), 32: (288, 1056), 64: (320, 1088), 128: (640, 1152), 256: (512, 2304)}
WEIGHT_ROWS = (17, 4, 5, 1, 8, 9, 3, 2, 16, 7)
SIZES = [(m, WEIGHT_ROWS[m % 10]) for m in (*range(1, 17), 40, 66)]  # activation rows and weight rows


def cross_tools() -> tuple[str, str]:
    """Compiler and emulator; skips where they are not needed or not there."""
    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("NEON is this machine's own instruction set: the operator tests run it")
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if not compiler or not emulator:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu qemu-user)")
    return compiler, emulator


def compile_neon(out: Path, sources: list[Path], *options: str) -> Path:
    """Compile or link for NEON."""
    compiler, _ = cross_tools()
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", f"-I{KERNELS}", "-DTRIGRAPH_ISA=neon", "-DTRIGRAPH_ISA_neon=1"]
    subprocess.run([compiler, *flags, *options, *map(str, sources), "-o", str(out)], check=True)
    return out


@pytest.fixture(scope="session")
def common_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """neon_rows.cc and what else has none of the instructions that not every set has."""
    out = tmp_path_factory.mktemp("neon")
    sources = [ROOT / "tests" / "custom_ops" / "neon_rows.cc", *(KERNELS / "blocks").rglob("*.cc")]
    common = [source for source in sources if source.name not in PRODUCTS]
    return [compile_neon(out / f"{source.stem}.o", [source], "-c") for source in common]


@pytest.fixture(scope="session")
def program(
    request: pytest.FixtureRequest, common_objects: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """The command that runs neon_rows.cc with the products of a set, given its features."""
    out = tmp_path_factory.mktemp("neon")
    common = KERNELS / "blocks" / "cpu" / "common"
    features = f"-march=armv8.2-a{request.param}"
    products = [compile_neon((out / name).with_suffix(".o"), [common / name], "-c", features) for name in PRODUCTS]
    linked = compile_neon(out / "neon_rows", [*common_objects, *products], "-static")
    return [cross_tools()[1], "-cpu", "max", str(linked)]


@pytest.mark.parametrize(
    ("program", "kind"),
    [("", "float32"), ("", "int8"), ("+dotprod", "int8"), ("+dotprod+i8mm", "int8")],
    indirect=["program"],
    scope="session",
)
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


def test_gated_delta_net_and_attention(tmp_path: Path) -> None:
    """vector_bits.cc prints the same lines for both instruction sets; it is compiled without an emulator too."""
    native = shutil.which(os.environ.get("CXX", "c++"))
    if not native:
        pytest.skip("needs a C++ compiler")
    source = ROOT / "tests" / "custom_ops" / "vector_bits.cc"
    options = ["-std=c++17", "-O1", "-ffp-contract=off", f"-I{KERNELS}", str(source), "-o"]
    portable = str(tmp_path / "portable")
    subprocess.run([native, "-DTRIGRAPH_ISA=portable", "-DTRIGRAPH_ISA_portable=1", *options, portable], check=True)
    _, emulator = cross_tools()
    neon = str(compile_neon(tmp_path / "neon", [source], "-static"))
    found, wanted = (
        subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
        for command in ([emulator, neon], [portable])
    )
    assert found == wanted and len(wanted) > 30


def test_sets_by_processor(tmp_path: Path) -> None:
    """Each processor gets the sets whose instructions it has, the best one first."""
    compiler, emulator = cross_tools()
    program = tmp_path / "sets"
    sources = [str(ROOT / "tests" / "custom_ops" / "arm_sets.cc"), str(KERNELS / "isa.cc")]
    subprocess.run([compiler, "-std=c++17", "-static", f"-I{KERNELS}", *sources, "-o", str(program)], check=True)
    sets = ["i8mm", "dotprod", "neon", "portable"]
    for processor, first in (("cortex-a72", 2), ("cortex-a76", 1), ("max", 0)):
        done = subprocess.run([emulator, "-cpu", processor, str(program)], capture_output=True, check=True, text=True)
        assert done.stdout.split() == sets[first:], processor
