"""What a round of drafts and their verify asks of the device, for the whole 35B-A3B. Nothing is computed."""

from collections.abc import Iterator

import pytest

from support.devices.fake_cuda import FakeDevice, copied, count, unasked
from trigraph.runtime import Engine
from trigraph.runtime.device.sampler import SamplingParameters
from trigraph.runtime.execution.device_executor import DeviceExecutor
from trigraph.runtime.execution.executor import SequencePlan
from trigraph.runtime.state.sequence import Sequence

VERIFY = {1: 253, 2: 283}
"""Kernels of a verify of four tokens of so many requests: see launches.py."""
DRAFT, DRAW = 12, 1
DRAFTS = 3
TOKENS = 8 * (DRAFTS + 2 * (1 + DRAFTS))
"""Bytes of the tokens that were drawn, and of the most likely ones of the verify."""
GREEDY, SAMPLED = SamplingParameters(0.0, 0, 1.0, 0.0, 7), SamplingParameters(0.7, 20, 0.95, 0.0, 7)


@pytest.fixture
def sequences(large: Engine, gpu: FakeDevice) -> Iterator[list[Sequence]]:
    """Two texts of some tokens."""
    found = [large.steps.new_sequence() for _ in range(2)]
    large.steps.prefill(found, [list(range(16))] * 2)
    yield found
    for sequence in found:
        large.steps.release(sequence)


def events_of(large: Engine, gpu: FakeDevice, sequences: list[Sequence], parameters: SamplingParameters) -> list[str]:
    """Of a round of so many sequences, when the device has seen its like."""
    executor = large.executor
    assert isinstance(executor, DeviceExecutor) and executor.sampler.supports(parameters)
    for _ in range(3):  # the second one drafts after tokens that were kept
        gpu.events()
        executor.run([SequencePlan(sequence, [5], DRAFTS, unasked, 0.0, parameters) for sequence in sequences])
        for sequence in sequences:
            sequence.pending = [5] * (1 + DRAFTS)  # nothing was computed
            large.steps.keep(sequence, 2)
    return gpu.events()


@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("count_of", [1, 2])
def test_a_round_is_waited_for_once(
    large: Engine, gpu: FakeDevice, sequences: list[Sequence], parameters: SamplingParameters, count_of: int
) -> None:
    """At its end; the host reads tokens and hidden rows, and no logits. Nothing is allocated."""
    events = events_of(large, gpu, sequences[:count_of], parameters)
    launches = VERIFY[count_of] + DRAFTS * DRAFT + (1 + DRAFTS) * DRAW
    assert count(events, "launch") == count(events, "launch own") == launches
    assert count(events, "wait") == 1 and events[-1].startswith("wait")
    assert not [event for event in events if event.startswith(("allocate", "free", "fill", "error"))]
    hidden = 4 * large.steps.state.limits.hidden * (1 + DRAFTS)
    # In one piece, with what lies between the two results.
    assert 0 <= copied(events, "device", "pinned") - count_of * (hidden + TOKENS) < 256
    assert count(events, "copy pinned device") == 1 + (1 + DRAFTS)  # draws, and the inputs of each step
    assert copied(events, "device", "pageable") == 0
    first = next(number for number, event in enumerate(events) if event.startswith("copy device pinned"))
    last = max(number for number, event in enumerate(events) if event.startswith("launch"))
    assert last < first, "something is read before all is enqueued"
