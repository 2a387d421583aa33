"""Experts that move to the device and from it while texts are made."""

from pathlib import Path

import pytest

from support.fake_cuda import FakeDevice, copied, count
from support.packages import Packages
from support.placed import budget_for
from support.step_rows import rows_of_steps
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.device import moving_experts
from trigraph.runtime.device.cuda import CudaDevice
from trigraph.runtime.device.moving_experts import MovingExperts

CAPACITY = 64
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-moe", "Q4_K_M")


def moving_of(engine: Engine) -> MovingExperts:
    """What moves its experts."""
    assert isinstance(engine.model.device, CudaDevice)
    (sharing,) = engine.model.device.shared
    assert sharing.moving is not None
    return sharing.moving


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
    for name, value in (("EVERY", 1), ("_RATIO", 0), ("_LEAST", -1)):
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
    k = engine.model.device.shared[0].placement.weights.layers[0].chosen  # type: ignore[attr-defined]
    assert (len(PROMPT) + 2) * k in chosen
