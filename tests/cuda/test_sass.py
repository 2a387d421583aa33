"""The machine code that nvcc makes of the CUDA kernels: no spills, wide loads, registers that let blocks share.

The compiler comes with the extra `sass`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.devices import sass
from support.devices.emulator import alone
from support.devices.sass import ARCHITECTURES, FILES, PLANES, Kernel, missing

RARE = "products.cu"
"""Products of the types that few models have, not held to this: some spill, and read blocks of odd sizes."""
FEW = ("few", "normed_", "quantised_")
"""What names of kernels of few rows begin with."""
EARLY = (
    "few_",
    "normed_",
    "quantised_",
    "normalize_rows",
    "prepare_int8",
    "route_rows",
    "scan_one",
    "attend_few",
    "write_",
)
"""What names of kernels of a decode begin with."""
WAITING = dict.fromkeys(("few_experts", "normed_products", "quantised_products"), "GPU")
WAITING |= dict.fromkeys(("await_host", "hand_over"), "SYS")
"""Kernels that read what others write meanwhile, and whose writes these are: the GPU's, or the system's."""
REGISTERS = {"scan": 248, "tiles": 168, "wide_tiles": 128, "tall_tiles": 168, "products": 128, "attend": 160, "mix": 96}
REGISTERS |= dict.fromkeys(FEW, 128)
"""Of a thread; 64 for all others. Two blocks of 256 threads fit with 128, one of 384 with 168."""

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"{', '.join(missing())} not found; the extra sass has them (pip install -e '.[sass]')"
)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fatbins() -> list[Path]:
    folder = sass.ROOT / "build" / "sass"
    with alone(folder):
        return sass.compiled([path for path in FILES if path.name != RARE and path != PLANES], folder)


@pytest.fixture(scope="module")
def compiled(architecture: str, fatbins: list[Path]) -> list[Kernel]:
    return sass.read(fatbins, architecture)


def test_no_code_asks_for_another_architecture() -> None:
    sources = [path.read_text() for suffix in ("h", "cu", "cuh") for path in sass.SOURCES.rglob(f"*.{suffix}")]
    asked = {number for text in sources for number in re.findall(r"__CUDA_ARCH__\s*[<>=!]+\s*(\w+)", text)}
    assert asked == {"900"}


def test_no_kernel_spills_registers(compiled: list[Kernel]) -> None:
    """No access to a thread's local memory."""
    assert len(compiled) > 20
    spilling = {kernel.name: kernel.count("STL") + kernel.count("LDL") for kernel in compiled}
    assert not {name: count for name, count in spilling.items() if count}


@pytest.mark.parametrize("architecture", ["sm_90"], indirect=True)
def test_kernels_that_begin_early_await_the_launch_before(compiled: list[Kernel]) -> None:
    assert all(any(kernel.name.startswith(name) for kernel in compiled) for name in EARLY)
    early = [kernel for kernel in compiled if kernel.name.startswith(EARLY)]
    assert not [kernel.name for kernel in early if kernel.count("ACQBULK") != 1]


def test_what_others_write_meanwhile_is_read_coherently(compiled: list[Kernel]) -> None:
    """No load takes the read-only path, and those of loops that wait are strong: for other blocks, or for the host."""
    loads = {kernel.name: {name for name, _ in kernel.instructions if name.startswith("LDG")} for kernel in compiled}
    assert not {name for name, kinds in loads.items() if any("CONSTANT" in kind for kind in kinds)}
    for waiting, scope in WAITING.items():
        found = [kinds for name, kinds in loads.items() if name.startswith(waiting)]
        assert found and all(any(f"STRONG.{scope}" in kind for kind in kinds) for kinds in found), waiting


def test_registers_let_blocks_share_a_multiprocessor(compiled: list[Kernel]) -> None:
    def cap(name: str) -> int:
        return next((most for beginning, most in REGISTERS.items() if name.startswith(beginning)), 64)

    assert not {kernel.name: kernel.registers for kernel in compiled if kernel.registers > cap(kernel.name)}


def test_weights_are_copied_ahead_and_wide(compiled: list[Kernel]) -> None:
    """Kernels of few rows copy weights to shared memory while they compute, 16 bytes at a time."""
    few = [kernel for kernel in compiled if kernel.name.startswith(FEW)]
    copies = {kernel.name: [name for name, _ in kernel.instructions if name.startswith("LDGSTS")] for kernel in few}
    assert few and all(names and all(".128" in name for name in names) for names in copies.values()), copies


def test_copies_ahead_are_in_groups(compiled: list[Kernel]) -> None:
    """A wait for a thread's copies is one for groups: those that no group has it does not wait for."""
    copying = [kernel for kernel in compiled if kernel.count("LDGSTS")]
    assert copying and not [kernel.name for kernel in copying if not kernel.count("LDGDEPBAR")]


def test_planes_are_asked_for_ahead() -> None:
    """Where the compiler cannot keep registers for asynchronous products, it awaits each of them."""
    folder = sass.ROOT / "build" / "sass"
    with alone(folder):
        fatbins = sass.compiled([PLANES], folder)
    (kernel,) = sass.read(fatbins, "sm_90a")
    assert kernel.count("STL") + kernel.count("LDL") == 0 and kernel.registers <= 255
    types, asked, awaited = 3, 16, 3  # of a step
    assert kernel.count("IGMMA") == types * asked and kernel.count("WARPGROUP.DEPBAR") == types * awaited
