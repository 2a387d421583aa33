"""Instruction sets that this processor lacks have the bits of the portable kernels.

QEMU runs those of ARM. SIMDe stands in for the instructions of AVX-512 and AVX-VNNI (simde.h).
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from support.operators.block_weights import (
    BLOCK,
    REPACKED,
    STORED,
    TYPES,
    MatMul,
    activations,
    random_blocks,
    repacked,
    weights,
)
from support.operators.row_bits import portable_kernels
from support.operators.run import same_bits
from trigraph.custom_ops import instruction_sets
from trigraph.models.synth.blocks import HALVES

pytestmark = pytest.mark.slow  # compiles kernels for each set

ROOT = Path(__file__).resolve().parents[2]
KERNELS, HERE = ROOT / "custom_ops", ROOT / "tests" / "custom_ops"
VECTOR_BITS = HERE / "vector_bits.cc", KERNELS / "paged_attention" / "int8_scores.cc"
# Super-blocks in one, two or four at a time, by those of a row.
WIDTHS = {1: (77, 1027), 32: (288, 1056, 1024), 64: (320, 1088), 128: (640, 1152), 256: (512, 2304, 1024)}
WEIGHT_ROWS = (17, 4, 5, 1, 8, 9, 3, 2, 16, 7)
SIZES = [(m, WEIGHT_ROWS[m % 10]) for m in (*range(1, 17), 40, 66)]  # activation rows and weight rows
INT8_ALONE = ("dotprod", "i8mm", "avx_vnni")  # sets that are another one but for products with int8
AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2", "-include", str(HERE / "simde.h"), "-Wno-psabi")


@dataclass(frozen=True)
class EmulatedSet:
    name: str
    source: str  # the set whose files it compiles
    options: tuple[str, ...]

    def tools(self) -> tuple[str, list[str]]:
        """Compiler and emulator; skips where they are not needed or not there."""
        return cross_tools() if self.source == "neon" else (simde_compiler(self.name), [])

    def build(self, program: Path, *sources: Path, options: Sequence[str] = ()) -> list[str]:
        """Compile a program. Returns the command that runs it."""
        compiler, emulator = self.tools()
        flags = ["-std=c++17", "-O1", "-ffp-contract=off", f"-I{KERNELS}", "-static", *self.options, *options]
        isa = [f"-DTRIGRAPH_ISA={self.source}", f"-DTRIGRAPH_ISA_{self.source}=1"]
        subprocess.run([compiler, *flags, *isa, *map(str, sources), "-o", str(program)], check=True)
        return [*emulator, str(program)]


SETS = {
    one.name: one
    for one in (
        EmulatedSet("neon", "neon", ()),
        EmulatedSet("dotprod", "neon", ("-march=armv8.2-a+dotprod",)),
        EmulatedSet("i8mm", "neon", ("-march=armv8.2-a+dotprod+i8mm",)),
        EmulatedSet("avx_vnni", "avx2", (*AVX2, "-DTRIGRAPH_EMULATED_AVX_VNNI")),
        EmulatedSet("avx512", "avx512", AVX2),
    )
}


def cross_tools() -> tuple[str, list[str]]:
    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("NEON is this machine's own instruction set: the operator tests run it")
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if not compiler or not emulator:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu qemu-user)")
    return compiler, [emulator, "-cpu", "max"]


def simde_compiler(name: str) -> str:
    if name in instruction_sets():
        pytest.skip(f"{name} is this machine's own instruction set: the operator tests run it")
    if "TRIGRAPH_TEST_EMULATED" not in os.environ:
        pytest.skip("compiles for ten minutes; TRIGRAPH_TEST_EMULATED=1 asks for it")
    if "avx2" not in instruction_sets():
        pytest.skip("needs a processor with AVX2")
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    header = ["-x", "c++", "-fsyntax-only", "-include", "simde/x86/avx512.h", os.devnull]
    if not compiler or subprocess.run([compiler, *header], capture_output=True, check=False).returncode:
        pytest.skip("needs a C++ compiler and SIMDe (Debian: libsimde-dev)")
    return compiler


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs row_products.cc with the products of a set."""
    sources = [HERE / "row_products.cc", *(KERNELS / "blocks").rglob("*.cc")]
    options = []
    if request.param in INT8_ALONE:
        sources.remove(KERNELS / "blocks" / "cpu" / "common" / "float_kernels.cc")
        options = ["-DTRIGRAPH_INT8_ALONE"]
    return SETS[request.param].build(tmp_path_factory.mktemp(request.param) / "row_products", *sources, options=options)


def check(program: list[str], type: str, kind: str, side: int = 1) -> None:
    """Compare products of weights, `side` rows of which lie side by side, with those of the portable kernels."""
    with portable_kernels():
        matmul = MatMul(type, kind, library="cpu")
    name = type if side == 1 else f"{type}_R{side}"
    cases, expected = [], []
    few = [(m, groups, width) for m, groups in SIZES[:4] for width in WIDTHS[BLOCK[type]]]
    more = [(*size, WIDTHS[BLOCK[type]][index % 2]) for index, size in enumerate(SIZES[4:])]
    for index, (m, groups, width) in enumerate(few + more):
        n = groups * side
        stored = [weights(type, n, width)]
        if type in HALVES:  # every code, scale and min, and halves of any size
            stored.append(random_blocks(type, n, width // BLOCK[type], seed=index))
        for weight in stored:
            x = activations(m, width)
            expected.append(matmul(x, weight))
            head = f"{name} {kind}\n{n} {width} {m} {weight.nbytes // n}\n".encode()
            raw = weight if side == 1 else repacked(type, weight, side)
            cases.append(head + raw.tobytes() + x.tobytes())
    done = subprocess.run(program, input=b"".join(cases), capture_output=True, check=True)
    found = np.split(np.frombuffer(done.stdout, np.float32), np.cumsum([y.size for y in expected])[:-1])
    for one, other in zip(found, expected, strict=True):
        assert same_bits(one.reshape(other.shape), other), other.shape


KINDS = [
    ("neon", "float32"), ("neon", "int8"), ("dotprod", "int8"), ("i8mm", "int8"),
    ("avx512", "float32"), ("avx512", "int8"), ("avx_vnni", "int8"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "kind"), KINDS, indirect=["program"], scope="session")
@pytest.mark.parametrize("type", TYPES)
def test_equal_to_portable(request: pytest.FixtureRequest, program: list[str], type: str, kind: str) -> None:
    if type in STORED and request.node.callspec.params["program"] in INT8_ALONE:
        pytest.skip("no kernel of this set multiplies float weights")
    check(program, type, kind)


@pytest.mark.parametrize(("program", "side"), [("avx512", 16), ("avx_vnni", 8)], indirect=["program"], scope="session")
@pytest.mark.parametrize("type", REPACKED)
def test_repacked(program: list[str], type: str, side: int) -> None:
    check(program, type, "int8", side)


@pytest.fixture(scope="module")
def vector_bits(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What vector_bits.cc prints for the portable set; it is compiled without an emulator too."""
    native = shutil.which(os.environ.get("CXX", "c++"))
    if not native:
        pytest.skip("needs a C++ compiler")
    program = str(tmp_path_factory.mktemp("portable") / "vector_bits")
    options = ["-std=c++17", "-O1", "-ffp-contract=off", f"-I{KERNELS}", *map(str, VECTOR_BITS), "-o", program]
    subprocess.run([native, "-DTRIGRAPH_ISA=portable", "-DTRIGRAPH_ISA_portable=1", *options], check=True)
    lines = subprocess.run([program], capture_output=True, check=True, text=True).stdout.splitlines()
    assert len(lines) > 30
    return lines


@pytest.mark.parametrize("name", ["neon", "dotprod", "avx_vnni", "avx512"])
def test_gated_delta_net_and_attention(name: str, vector_bits: list[str], tmp_path: Path) -> None:
    """vector_bits.cc prints the same lines for both instruction sets."""
    command = SETS[name].build(tmp_path / name, *VECTOR_BITS)
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines() == vector_bits


def test_sets_by_processor(tmp_path: Path) -> None:
    """Each processor gets the sets whose instructions it has, the best one first."""
    compiler, (emulator, *_) = cross_tools()
    program = tmp_path / "sets"
    sources = [str(KERNELS / "processor_sets.cc"), str(KERNELS / "isa.cc")]
    subprocess.run([compiler, "-std=c++17", "-static", f"-I{KERNELS}", *sources, "-o", str(program)], check=True)
    arm = ["i8mm", "dotprod", "neon", "portable"]
    for processor, first in (("cortex-a72", 2), ("cortex-a76", 1), ("max", 0)):
        done = subprocess.run([emulator, "-cpu", processor, str(program)], capture_output=True, check=True, text=True)
        assert done.stdout.split() == arm[first:], processor
