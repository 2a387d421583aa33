"""What a step of the whole 35B-A3B asks of the device. Nothing is computed: only sizes and calls count."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, count
from support.models.hollow import write_hollow
from trigraph.runtime import Engine, load
from trigraph.runtime.requests.stats import peak_memory
from trigraph.runtime.state.sequence import Sequence

VERIFY = {1: 213, 2: 213, 4: 253, 8: 253}
"""Kernels of a verify by its tokens: from three on the norm before the router is a launch."""
DRAFT, PREFILL = 12, 370
"""Kernels of a draft of one, whose first norm has 4,096 columns and so is a launch, and of a prefill of 16."""


def test_weights_take_their_size(large: Engine, hollow: Path, gpu: FakeDevice) -> None:
    """The file's and 2 % at most, beside the state."""
    assert gpu.allocated() - large.steps.state.nbytes() <= 1.02 * hollow.stat().st_size


def test_the_host_needs_what_two_pieces_of_the_file_need(tmp_path: Path) -> None:
    """Pages that were read are given back."""
    model, most = write_hollow("qwen3.6-35b-a3b", tmp_path / "model.gguf", layers=4), 1_500_000_000
    assert model.stat().st_size > 2 * most
    load(model, device="cuda", context=4096, sequences=2)
    peak = peak_memory()
    assert peak is not None and peak < most


@pytest.fixture
def sequence(large: Engine, gpu: FakeDevice) -> Iterator[Sequence]:
    """A text of some tokens, when every shape of a step has been seen."""
    sequence = large.steps.new_sequence()
    for _ in range(2):
        large.steps.prefill([sequence], [list(range(16))])
        for tokens in (1, 4, 8):
            large.steps.verify([sequence], [list(range(tokens))])
        large.steps.draft([sequence], [1])
    gpu.events()
    yield sequence
    large.steps.release(sequence)


def check_step(events: list[str], launches: int) -> None:
    """So many launches, no memory asked for, nothing refused, and a host that waits at the end alone."""
    assert count(events, "launch") == count(events, "launch own") == launches
    assert not [event for event in events if event.startswith(("allocate", "free", "fill", "error"))]
    assert count(events, "wait") == 1
    last = max(number for number, event in enumerate(events) if event.startswith("launch"))
    assert not count(events[:last], "wait")


@pytest.mark.parametrize("tokens", VERIFY)
def test_a_verify(large: Engine, sequence: Sequence, gpu: FakeDevice, tokens: int) -> None:
    large.steps.verify([sequence], [list(range(tokens))])
    check_step(gpu.events(), VERIFY[tokens])


def test_a_draft(large: Engine, sequence: Sequence, gpu: FakeDevice) -> None:
    large.steps.draft([sequence], [1])
    check_step(gpu.events(), DRAFT)


def test_a_prefill(large: Engine, sequence: Sequence, gpu: FakeDevice) -> None:
    large.steps.prefill([sequence], [list(range(16))])
    check_step(gpu.events(), PREFILL)
