"""Experts that move to the device and from it while texts are made."""

import gc
import math
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from support.devices.fake_cuda import FakeDevice, copied, count
from support.devices.placed import budget_for, budget_for_layers, source_of
from support.models.packages import Packages
from support.requests.step_rows import rows_of_steps
from trigraph.exporter.package.manifest import EXPERT_COUNTS
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.device.parts import moving_experts
from trigraph.runtime.device.parts.expert_counts import write_counts
from trigraph.runtime.device.parts.moving_experts import MovingExperts

CAPACITY = 64
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-moe", "Q4_K_M")


def moving_of(engine: Engine) -> MovingExperts:
    """What moves its experts."""
    moving = source_of(engine).moving
    assert moving is not None
    return moving


def texts(engine: Engine) -> list[list[int]]:
    """Greedy and sampled, with and without drafts."""
    found = []
    for sampling, drafts in ((Sampling(temperature=0), 0), (Sampling(seed=7), 3)):
        request = engine.generate(PROMPT, Options(sampling, max_tokens=12, ignore_eos=True, draft_tokens=drafts))
        request.run()
        found.append(request.ids)
    return found


def restless(package: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that holds half of the experts, and moves some ahead of each verify, wanted or not."""
    for name, value in (("EVERY", 1), ("_RATIO", 0), ("_LEAST", -1), ("BYTES_A_SECOND", math.inf)):
        monkeypatch.setattr(moving_experts, name, value)
    budget = budget_for(package, 0.5, context=CAPACITY, sequences=3)
    return load(package, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=3)


@pytest.mark.parametrize("graphs", ["0", "1"])
def test_bits_stay(package: Path, monkeypatch: pytest.MonkeyPatch, graphs: str) -> None:
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", graphs)
    engine, on_cpu = restless(package, monkeypatch), load(package, device="cpu", context=CAPACITY, sequences=3)
    assert texts(engine) == texts(on_cpu)
    before = moving_of(engine).moved
    assert before >= 20
    assert rows_of_steps(engine) == rows_of_steps(on_cpu)
    assert moving_of(engine).moved > before


def test_a_step_moves_no_more_than_its_bytes(package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """In copies from pinned memory, and a table for each layer; the host waits for the step alone."""
    monkeypatch.setattr(moving_experts, "BYTES_A_STEP", 1)  # one expert
    engine = restless(package, monkeypatch)
    most = max(layer.expert_bytes for layer in moving_of(engine)._layers.values())
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [PROMPT])
    for _ in range(3):
        engine.steps.verify([sequence], [[1]])
    moved = moving_of(engine).moved
    gpu.events()
    engine.steps.verify([sequence], [[1]])
    events = gpu.events()
    assert moving_of(engine).moved == moved + 1
    assert 0 < copied(events, "pinned", "device") < most + 2_000
    assert copied(events, "pageable", "device") == 0
    assert count(events, "wait stream") == 1
    assert count(events, "replay") == 1


def test_a_second_moves_no_more_than_its_bytes(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps it has."""
    monkeypatch.setattr(moving_experts, "BYTES_A_STEP", 1)  # one expert
    engine = restless(package, monkeypatch)
    rate, clock = 1 << 20, [time.monotonic()]
    monkeypatch.setattr(moving_experts, "BYTES_A_SECOND", rate)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    moving = moving_of(engine)
    sizes = [layer.expert_bytes for layer in moving._layers.values()]
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [PROMPT])
    before = moving.moved
    for step in range(1, 41):
        clock[0] += 0.01
        engine.steps.verify([sequence], [[1]])
        assert (moving.moved - before - 1) * min(sizes) <= 0.01 * step * rate, step
    assert 1 < moving.moved - before < 20


def test_counts_are_those_of_the_router(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompts and verifies, whichever side computes."""
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", "0")  # captures run a step several times
    budget = budget_for(package, 0.5, context=CAPACITY, sequences=3)
    engine = load(package, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=3)
    layers = moving_of(engine)._layers.values()
    for layer in layers:
        moving_experts._take_counts(layer)
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [PROMPT])
    engine.steps.verify([sequence], [[4, 5]])
    chosen = {int(moving_experts._take_counts(layer).sum()) for layer in layers if layer.stacks}
    share = source_of(engine).share
    assert share is not None
    assert (len(PROMPT) + 2) * share.weights.layers[0].chosen in chosen


def test_the_next_start_begins_with_what_was_used(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And goes on without a file that is damaged."""
    own = tmp_path / "package"
    shutil.copytree(package, own, symlinks=True)
    monkeypatch.setattr(moving_experts, "write_counts", write_counts)
    on_cpu = texts(load(own, device="cpu", context=CAPACITY, sequences=3))
    first = restless(own, monkeypatch)
    assert texts(first) == on_cpu
    used = {name: layer.used.copy() for name, layer in moving_of(first)._layers.items()}
    first.close()
    del first
    gc.collect()
    for name, value in (("EVERY", 1 << 30), ("_RATIO", 1), ("_LEAST", 0)):
        monkeypatch.setattr(moving_experts, name, value)
    budget = budget_for(own, 0.5, context=CAPACITY, sequences=3)
    second = load(own, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=3)
    for name, layer in moving_of(second)._layers.items():
        assert np.allclose(layer.used, used[name], atol=0.05)
        held = layer.slots >= 0
        assert layer.used[held].min() >= layer.used[~held].max() - 0.1
    assert moving_of(second).moved and texts(second) == on_cpu
    (own / EXPERT_COUNTS).write_text("[1, 2")
    third = load(own, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=3)
    assert not moving_of(third).moved and texts(third) == on_cpu
    assert "is not used, as it is damaged or of another model" in caplog.text


def test_counts_are_used_with_another_budget(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For which the CPU computes the first layer as a whole."""
    own = tmp_path / "package"
    shutil.copytree(package, own, symlinks=True)
    engine = restless(own, monkeypatch)
    counts = {name: np.arange(len(layer.slots), dtype=float) for name, layer in moving_of(engine)._layers.items()}
    write_counts(own / EXPERT_COUNTS, counts)
    budget = budget_for_layers(own, 1, CAPACITY, 3) + 200_000
    second = load(own, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=3)
    layers = moving_of(second)._layers
    shared = layers.keys() & counts.keys()
    assert len(shared) == len(counts) - 1 and not caplog.text
    assert all(np.array_equal(layers[name].used, counts[name]) for name in shared)
