"""What block drafters ask of the device, for the whole 35B-A3B with a published drafter. Nothing is computed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, copied, count, kernels, unasked
from support.models.hollow import load_hollow
from trigraph.models.synth import write_synthetic_drafter
from trigraph.runtime import Engine
from trigraph.runtime.device.sampler import SamplingParameters
from trigraph.runtime.execution.device_executor import DeviceExecutor
from trigraph.runtime.execution.executor import SequencePlan
from trigraph.runtime.state.sequence import Sequence

LAYERS, DRAFTS = 6, 7
OF_A_LAYER = {"convolve": 4, "write_entries": 1, "attend": 1}
"""Kernels of a layer of the drafter beside norms and products."""
BLOCK, CONTEXT, VERIFY = 86, 15, 253
"""Kernels of a block, those by which a verify with the drafter's context has more, and those of a verify of eight."""
GREEDY, SAMPLED = SamplingParameters(0.0, 0, 1.0, 0.0, 7), SamplingParameters(0.7, 20, 0.95, 0.0, 7)


@pytest.fixture(scope="module")
def drafting(hollow: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    drafter = tmp_path_factory.mktemp("drafter") / "dflash2.gguf"
    write_synthetic_drafter("dflash2-qwen3.6-35b-a3b", drafter, hollow=True)
    return load_hollow(hollow, context=4096, sequences=2, draft_model=drafter)


@pytest.fixture
def sequences(drafting: Engine, gpu: FakeDevice) -> Iterator[list[Sequence]]:
    """Two texts of some tokens."""
    found = [drafting.steps.new_sequence() for _ in range(2)]
    drafting.steps.prefill(found, [list(range(16))] * 2)
    yield found
    for sequence in found:
        drafting.steps.release(sequence)


def test_a_block(drafting: Engine, gpu: FakeDevice, sequences: list[Sequence]) -> None:
    """No kernel but our own, no copy between, and a wait at the end."""
    for _ in range(3):  # the first ones allocate
        gpu.events()
        drafting.steps.draft_block(sequences[:1], [1])
        events = gpu.events()
    launched = kernels(events)
    assert {name: launched[f"own {name}"] for name in OF_A_LAYER} == {k: LAYERS * n for k, n in OF_A_LAYER.items()}
    assert launched["own rank_tokens"] == launched["own join_candidates"] == 1
    assert count(events, "launch") == count(events, "launch own") == BLOCK
    assert [event.split()[:3] for event in events if event.startswith("copy")] == [
        ["copy", "pinned", "device"],
        ["copy", "device", "pinned"],
    ]
    assert count(events, "wait") == 1 and events[-1].startswith("wait")
    assert not [event for event in events if event.startswith(("allocate", "free", "fill", "error"))]


def test_the_context_in_a_verify(drafting: Engine, gpu: FakeDevice, sequences: list[Sequence]) -> None:
    for _ in range(3):  # the first ones allocate
        gpu.events()
        drafting.steps.verify(sequences[:1], [list(range(8))])
        events = gpu.events()
    assert count(events, "launch") == count(events, "launch own") == VERIFY + CONTEXT
    assert count(events, "wait") == 1 and not count(events, "error")


@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_round_is_waited_for_once(
    drafting: Engine, gpu: FakeDevice, sequences: list[Sequence], parameters: SamplingParameters
) -> None:
    """The device walks through the block, and its drafts go to the verify there; beside them, a chain of the head."""
    executor = drafting.executor
    assert isinstance(executor, DeviceExecutor) and executor.sampler.supports(parameters)
    for by_block in ((True,), (True, True), (True, False)):
        for _ in range(3):
            gpu.events()
            plan = [
                SequencePlan(sequence, [5], DRAFTS if block else 3, unasked, 0.0, parameters, block=block)
                for sequence, block in zip(sequences, by_block, strict=False)
            ]
            executor.run(plan)
            for sequence in sequences[: len(by_block)]:
                sequence.pending = [5] * (1 + DRAFTS)  # nothing was computed
                drafting.steps.keep(sequence, 2)
        events = gpu.events()
        assert kernels(events)["own walk_blocks"] == 1
        assert count(events, "launch") == count(events, "launch own")
        assert count(events, "wait") == 1 and events[-1].startswith("wait")
        assert not [event for event in events if event.startswith(("allocate", "free", "fill", "error"))]
        assert copied(events, "device", "pageable") == 0
        first = next(number for number, event in enumerate(events) if event.startswith("copy device pinned"))
        last = max(number for number, event in enumerate(events) if event.startswith("launch"))
        assert last < first, "something is read before all is enqueued"


def test_a_floor_is_the_hosts(drafting: Engine, gpu: FakeDevice, sequences: list[Sequence]) -> None:
    """How many drafts are verified then depends on their scores: the host walks, and waits once more."""
    executor = drafting.executor
    plan = [SequencePlan(sequences[0], [5], DRAFTS, unasked, 0.1, GREEDY, block=True)]
    for _ in range(2):
        gpu.events()
        executor.run(plan)
        events = gpu.events()
        sequences[0].pending = [5]
        drafting.steps.keep(sequences[0], 1)
    assert not kernels(events)["own walk_blocks"] and count(events, "wait") == 2
