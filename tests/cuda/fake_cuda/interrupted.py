"""Captures in whose midst another thread uses the device."""

import gc
import threading
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, count
from support.models.packages import Packages
from trigraph.custom_ops import library_path
from trigraph.runtime import Engine, load
from trigraph.runtime.device.cuda import captures
from trigraph.runtime.device.cuda.library import CudaLibrary


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-moe", "Q4_K_M")


def rows(package: Path, device: str, times: int = 3) -> list[bytes]:
    """Of verifies, after each of which two tokens are kept."""
    engine = load(package, device=device, context=256)
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [[1, 2, 3]])
    found = []
    for _ in range(times):
        found.append(engine.steps.verify([sequence], [[4, 5, 6]]).logits.copy().tobytes())
        engine.steps.keep(sequence, 2)
    return found


def test_what_others_allocate_and_free_ends_no_capture(package: Path, gpu: FakeDevice) -> None:
    """Finalizers do that, in any thread."""
    other = CudaLibrary(library_path("cuda"))

    def work() -> None:
        other.free(other.allocate(1 << 20), False)
        other.free(other.allocate(1 << 10, pinned=True), True)

    gpu.events()
    with gpu.in_captures(work) as raised:
        found = rows(package, "cuda")
    events = gpu.events()
    assert not raised and found == rows(package, "cpu")
    assert count(events, "capture ends") == 1 and not count(events, "error")


def test_a_second_model_runs_and_goes_in_a_capture(package: Path, gpu: FakeDevice) -> None:
    """Its work is on a stream of its own: none of it becomes part of the graph."""
    second, found = [load(package, device="cuda", context=64)], []

    def work() -> None:
        engine = second.pop()
        sequence = engine.steps.new_sequence()
        found.append(engine.steps.prefill([sequence], [[7, 8]]).logits.copy().tobytes())
        del engine, sequence
        gc.collect()

    gpu.events()
    with gpu.in_captures(work) as raised:
        captured = rows(package, "cuda")
    events = gpu.events()
    assert not raised and captured == rows(package, "cpu")
    assert count(events, "capture ends") == 1 and not count(events, "error")
    engine = load(package, device="cpu", context=64)
    assert found == [engine.steps.prefill([engine.steps.new_sequence()], [[7, 8]]).logits.tobytes()]


def test_a_second_model_waits_for_a_capture(package: Path, gpu: FakeDevice) -> None:
    """ONNX Runtime waits for the whole GPU when it opens a session."""
    threads: list[threading.Thread] = []

    def work() -> None:
        threads.append(threading.Thread(target=lambda: loaded.append(load(package, device="cuda", context=64))))
        threads[-1].start()
        threads[-1].join(0.5)

    loaded: list[Engine] = []
    gpu.events()
    with gpu.in_captures(work):
        captured = rows(package, "cuda")
        for thread in threads:
            thread.join()
    events = gpu.events()
    assert len(loaded) == 1 and captured == rows(package, "cpu")
    assert count(events, "capture ends") == 1 and not count(events, "error")


def test_while_a_model_is_loaded_steps_run_uncaptured(package: Path, gpu: FakeDevice) -> None:
    """And are captured afterwards."""
    engine = load(package, device="cuda", context=256)
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [[1, 2, 3]])
    gpu.events()
    with captures.apart:
        for _ in range(5):
            engine.steps.verify([sequence], [[4]])
    assert not count(gpu.events(), "capture")
    engine.steps.verify([sequence], [[4]])
    assert count(gpu.events(), "capture ends") == 1


@pytest.mark.parametrize("times", [1, 5])
def test_a_capture_that_is_broken_off_is_repeated(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The step runs without. After some failures it is left at that."""
    left = [times]

    def work() -> None:
        if left[0]:
            left[0] -= 1
            assert gpu.allocate_as_others_do() != 0

    gpu.events()
    with gpu.in_captures(work) as raised:
        found = rows(package, "cuda", 6)
    events = gpu.events()
    assert not raised and found == rows(package, "cpu", 6)
    tried = min(times, captures._ATTEMPTS)
    assert count(events, "capture breaks off") == tried
    assert count(events, "capture ends") == (tried == times)
    assert count(events, "replay") == (6 - tried + 1 if tried == times else 0)
