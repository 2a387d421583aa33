"""What a round of drafts and their verify asks of the device, for the whole 35B-A3B. Nothing is computed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_cuda import FakeDevice, copied, count
from support.hollow import write_hollow
from trigraph.runtime import Engine, load
from trigraph.runtime.device.device import Drawing
from trigraph.runtime.execution.device_rounds import run_device_round
from trigraph.runtime.state.sequence import Sequence

VERIFY = {1: 253, 2: 323}
"""Kernels of a verify of so many requests: see launches.py."""
DRAFT, DRAW = 12, 1
DRAFTS = 3
TOKENS = 8 * (DRAFTS + 2 * (1 + DRAFTS))
"""Bytes of the tokens that were drawn, and of the most likely ones of the verify."""
GREEDY, SAMPLED = Drawing(0.0, 0, 1.0, 0.0, 7), Drawing(0.7, 20, 0.95, 0.0, 7)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    file: Path = write_hollow("qwen3.6-35b-a3b", tmp_path_factory.mktemp("hollow") / "model.gguf")
    return load(file, device="cuda", context=4096, sequences=2)


@pytest.fixture
def sequences(engine: Engine, gpu: FakeDevice) -> Iterator[list[Sequence]]:
    """Two texts of some tokens."""
    found = [engine.steps.new_sequence() for _ in range(2)]
    engine.steps.prefill(found, [list(range(16))] * 2)
    yield found
    for sequence in found:
        engine.steps.release(sequence)


def events_of(engine: Engine, gpu: FakeDevice, sequences: list[Sequence], drawing: Drawing) -> list[str]:
    """Of a round of so many sequences, when the device has seen its like."""
    drawer = engine.steps.drawer
    assert drawer is not None and drawer.draws(drawing)
    for _ in range(3):  # the second one drafts after tokens that were kept
        gpu.events()
        tokens, counts = [[5]] * len(sequences), [DRAFTS] * len(sequences)
        run_device_round(engine.steps, drawer, sequences, tokens, counts, [drawing] * len(sequences))
        for sequence in sequences:
            sequence.pending = [5] * (1 + DRAFTS)  # nothing was computed
            engine.steps.accept(sequence, 2)
    return gpu.events()


@pytest.mark.parametrize("drawing", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("count_of", [1, 2])
def test_a_round_is_waited_for_once(
    engine: Engine, gpu: FakeDevice, sequences: list[Sequence], drawing: Drawing, count_of: int
) -> None:
    """At its end; the host reads tokens and hidden rows, and no logits. Nothing is allocated."""
    events = events_of(engine, gpu, sequences[:count_of], drawing)
    launches = VERIFY[count_of] + DRAFTS * DRAFT + (1 + DRAFTS) * DRAW
    assert count(events, "launch") == count(events, "launch own") == launches
    assert count(events, "wait") == 1 and events[-1].startswith("wait")
    assert not [event for event in events if event.startswith(("allocate", "free", "fill", "error"))]
    hidden = 4 * engine.steps.state.limits.hidden * (1 + DRAFTS)
    # In one piece, with what lies between the two results.
    assert 0 <= copied(events, "device", "pinned") - count_of * (hidden + TOKENS) < 256
    assert count(events, "copy pinned device") == 1 + (1 + DRAFTS)  # draws, and the inputs of each step
    assert copied(events, "device", "pageable") == 0
    first = next(number for number, event in enumerate(events) if event.startswith("copy device pinned"))
    last = max(number for number, event in enumerate(events) if event.startswith("launch"))
    assert last < first, "something is read before all is enqueued"
