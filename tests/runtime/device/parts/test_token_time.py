"""What reading a token's weights should take, as the start says it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.device import Device
from trigraph.runtime.device.parts import token_time as measured
from trigraph.runtime.device.parts.placing import place
from trigraph.runtime.device.parts.token_time import token_time
from trigraph.runtime.device.parts.weights import Block, ExpertLayer, Weights

BLOCK = Block(nbytes=10**9, read_bytes=10**9)
DENSE = Weights(trunk_bytes=6 * 10**9, blocks=(BLOCK,) * 4)
EXPERTS = ExpertLayer(name="0", experts=8, expert_bytes=10**9, chosen=2)
WORK = 10**9


@dataclass(frozen=True)
class Gpu(Device):
    """A GPU whose memory is so fast; 0: there is none left to measure it."""

    rate: float = 0
    number: int = 0

    @property
    def label(self) -> str:
        return f"cuda:{self.number}"

    def copy_rate(self) -> float:
        if not self.rate:
            raise TrigraphError("no memory left")
        return self.rate


def gpus(*rates: float) -> Sequence[Device]:
    return [Gpu(None, "CUDA", rate=rate, number=number) for number, rate in enumerate(rates)]


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose memory gives 50 GB/s."""
    monkeypatch.setattr(measured, "memory_reader", lambda threads: lambda: 50e9)


def test_part_after_part() -> None:
    placement = place(DENSE, [25 * 10**8, 55 * 10**8], WORK)  # one layer on the CPU, one on the first, the rest
    assert token_time(placement, gpus(500e9, 1000e9), 4) == (
        ", which should take 26.0 ms at the measured 50 GB/s of the host's, 500 GB/s of cuda:0's, 1,000 GB/s of "
        "cuda:1's memory"
    )
    found = token_time(place(DENSE, [5 * 10**9, 6 * 10**9], WORK), gpus(500e9, 1000e9), 4)
    assert found == ", which should take 9.0 ms at the measured 500 GB/s of cuda:0's, 1,000 GB/s of cuda:1's memory"


def test_experts_are_read_at_once() -> None:
    weights = Weights(trunk_bytes=2 * 10**9, layers=(EXPERTS,))
    placement = place(weights, [7 * 10**9 + (1 << 28)], WORK)  # half of the experts, and longer pieces of prompts
    assert math.isclose(placement.seconds([1e12], 50e9), 2e-3 + 20e-3)
    assert math.isclose(placement.seconds([1e12], 4e12), 2e-3 + 1e-3)


def test_what_cannot_be_measured() -> None:
    """On another machine, or where others have taken the memory; few bytes are not worth it."""
    placement = place(DENSE, [25 * 10**8, 55 * 10**8], WORK)
    assert token_time(placement, (), 4) == "; the host's take 20 ms at the 50 GB/s of this machine"
    assert token_time(placement, gpus(500e9, 0), 4) == ""
    assert token_time(place(DENSE, [10**10], WORK), (), 4) == ""
    assert token_time(place(Weights(trunk_bytes=10**6), [10**10], WORK), gpus(1e12), 4) == ""
