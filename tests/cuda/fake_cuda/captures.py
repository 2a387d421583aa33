"""Steps that are captured as CUDA graphs: what the first one does, and what a later one is."""

import threading

import pytest

from support.devices.fake_cuda import FakeDevice, count
from support.models.packages import Packages
from trigraph.runtime import Engine, load
from trigraph.runtime.device.cuda import captures
from trigraph.runtime.execution import sessions


@pytest.fixture(scope="module")
def engine(packages: Packages) -> Engine:
    return load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=256)


def test_a_replayed_step_is_one_launch(engine: Engine, gpu: FakeDevice) -> None:
    """It replays as many kernels as were captured, and asks for no memory; a draft too."""
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [[1, 2, 3]])
    for step in (
        lambda: engine.steps.verify([sequence], [[4, 5]]),
        lambda: engine.steps.draft([sequence], [4]),
    ):
        gpu.events()
        step()
        first = gpu.events()
        captured = count(first, "captured own") + count(first, "captured foreign")
        assert count(first, "capture ends") == 1 and not count(first, "error")
        step()
        again = gpu.events()
        assert f"replay {captured}" in again
        assert not [event for event in again if event.startswith(("launch", "capture", "allocate", "free", "error"))]


def test_every_thread_captures_without_moving_the_state(packages: Packages) -> None:
    """ONNX Runtime keeps graphs for each thread: the first run of each is three."""

    def rows(device: str) -> list[bytes]:
        engine = load(packages("tiny-moe", "Q4_K_M"), device=device, context=256)
        sequence = engine.steps.new_sequence()
        engine.steps.prefill([sequence], [[1, 2, 3]])
        found = []

        def step() -> None:
            found.append(engine.steps.verify([sequence], [[4, 5, 6]]).logits.copy().tobytes())
            engine.steps.keep(sequence, 2)

        for _ in range(2):
            step()
            other = threading.Thread(target=step)
            other.start()
            other.join()
        return found

    assert rows("cuda") == rows("cpu")


def test_a_captured_shape_is_not_forgotten(
    packages: Packages, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime would keep its graph."""
    monkeypatch.setattr(sessions, "_MAX_BINDINGS", 1)
    engine = load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=256)
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [[1, 2, 3]])
    gpu.events()
    for tokens in (1, 2, 1, 2):
        engine.steps.verify([sequence], [list(range(tokens))])
    assert count(gpu.events(), "capture ends") == 2


def test_shapes_are_captured_late(packages: Packages, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are many, and most are seldom used. The state moves once all the same, before, then and afterwards."""
    monkeypatch.delenv("TRIGRAPH_CUDA_GRAPHS")

    def rows(device: str) -> list[bytes]:
        engine = load(packages("tiny-moe", "Q4_K_M"), device=device, context=256)
        sequences = [engine.steps.new_sequence() for _ in range(2)]
        engine.steps.prefill(sequences, [[1, 2, 3], [4, 5]])
        gpu.events()
        found = []
        for _ in range(34):
            found.append(engine.steps.verify(sequences, [[4, 5, 6], [7, 8]]).logits.copy().tobytes())
            for sequence in sequences:
                engine.steps.keep(sequence, 2)
            captured.append(count(gpu.events(), "capture ends"))
        return found

    captured: list[int] = []
    assert rows("cuda") == rows("cpu")
    assert captured == [0] * 31 + [1] + [0] * 36


def test_shapes_that_evict_each_other_are_captured_too(
    packages: Packages, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their runs are counted for longer than a binding lives."""
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", "8")
    monkeypatch.setattr(sessions, "_MAX_BINDINGS", 1)
    engine = load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=256)
    sequences = [engine.steps.new_sequence() for _ in range(2)]
    engine.steps.prefill(sequences, [[1, 2, 3], [4, 5]])
    gpu.events()
    for _ in range(9):
        for tokens in ([[4], [7]], [[4, 5], [7]]):
            engine.steps.verify(sequences, tokens)
    events = gpu.events()
    assert count(events, "capture ends") == 2 and count(events, "replay") == 6  # a capture's own too


def test_captures_are_bounded(packages: Packages, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other shapes are run launch by launch."""
    monkeypatch.setattr(captures, "_MOST_CAPTURES", 2)
    engine = load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=256)
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [[1, 2, 3]])
    gpu.events()
    for tokens in (1, 2, 3, 3):
        engine.steps.verify([sequence], [list(range(tokens))])
    events = gpu.events()
    assert count(events, "capture ends") == 2 and count(events, "launch") > 100
