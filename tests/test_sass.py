"""The machine code that nvcc makes of the CUDA kernels: no spills, wide loads, registers that let blocks share.

The compiler comes with the extra `sass`. Kernels of decodes and verifies are compiled for sm_90; `make sass` takes all
kernels, and sm_80 and sm_89 too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.sass import SOURCES, Kernel, kernels, missing

ALL = os.environ.get("TRIGRAPH_SASS") == "all"
ARCHITECTURES = ("sm_80", "sm_89", "sm_90") if ALL else ("sm_90",)
SLOW = () if ALL else ("products.cu",)
"""What takes longer to compile than all the rest: every type, and tensor cores for prefill."""
FILES = [path for path in sorted(SOURCES.rglob("*.cu")) if path.name not in SLOW and path.parent.name != "cuda"]
REGISTERS = {"scan": 248, "tiles": 168, "products": 128, "few": 128, "attend": 160, "mix": 96}
"""Of a thread; 64 for all others. Two blocks of 256 threads fit with 128."""
LOADS = {"Q4_K": (3, 16), "Q5_K": (7, 16), "Q6_K": (41, 1), "Q8_0": (10, 2), "F32": (8, 4)}
"""Of a block of weights by a thread: how many at most, and the narrowest one's bytes.

Blocks of Q6_K and Q8_0 lie at multiples of two bytes, which forbids wide loads.
"""

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"{', '.join(missing())} not found; the extra sass has them (pip install -e '.[sass]')"
)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    return kernels(FILES, request.param, tmp_path_factory.mktemp("sass"))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def types(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    """meet_rows<type, activation rows> of tests/sass/types.cu."""
    source = Path(__file__).parent / "sass" / "types.cu"
    return kernels([source], request.param, tmp_path_factory.mktemp("sass"))


def test_no_kernel_spills_registers(compiled: list[Kernel]) -> None:
    """No access to a thread's local memory."""
    assert len(compiled) > 20
    spilling = {kernel.name: kernel.count("STL") + kernel.count("LDL") for kernel in compiled}
    assert not {name: count for name, count in spilling.items() if count}


def test_registers_let_blocks_share_a_multiprocessor(compiled: list[Kernel]) -> None:
    def cap(name: str) -> int:
        return next((most for beginning, most in REGISTERS.items() if name.startswith(beginning)), 64)

    assert not {kernel.name: kernel.registers for kernel in compiled if kernel.registers > cap(kernel.name)}


def test_weights_are_asked_for_before_activations_are_made(compiled: list[Kernel]) -> None:
    """Kernels of few rows prefetch what their block will read."""
    few = [kernel for kernel in compiled if kernel.name.startswith("few")]
    assert few and all(kernel.count("CCTL.E.PF2") for kernel in few)


def test_loads_are_as_wide_as_blocks_allow(types: list[Kernel]) -> None:
    assert len(types) == 4 * len(LOADS)
    for kernel in types:
        most, narrowest = LOADS[kernel.name.removeprefix("meet_rows<").split(",")[0]]
        loads = kernel.loads()
        assert sum(loads.values()) <= most and min(loads) >= narrowest, (kernel.name, loads)
        assert not kernel.count("STL"), kernel.name


def test_a_block_is_asked_for_whole(types: list[Kernel]) -> None:
    """With one activation row, all that a thread needs of a block of Q4_K is on its way at once."""
    (kernel,) = (kernel for kernel in types if kernel.name == "meet_rows<Q4_K, 1>")
    assert kernel.bytes_in_flight() == 48
