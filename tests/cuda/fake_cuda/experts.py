"""Experts that do not fit, under ONNX Runtime's own provider: the CPU's bits, and what a step does when."""

import ctypes
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, copied, count, events_of_verifies
from support.devices.placed import budget_for
from support.models.packages import Packages
from support.requests.step_rows import rows_of_steps
from trigraph.custom_ops import host_experts, library_path
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.device.cuda.library import CudaLibrary

PROMPT = [3, 1, 4, 1, 5]
CAPACITY = 64
SHARES = (0, 0.1, 0.5, 1)
_LAYERS = 4


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-moe", "Q4_K_M")


def engine_of(package: Path, share: float) -> Engine:
    """Whose GPU holds that share of the experts."""
    budget = budget_for(package, share, context=CAPACITY, sequences=3)
    return load(package, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=3)


def texts(engine: Engine) -> list[list[int]]:
    """Greedy and sampled, with drafts, alone; then three together."""
    options = [
        Options(sampling, max_tokens=10, ignore_eos=True, draft_tokens=drafts)
        for sampling, drafts in ((Sampling(temperature=0), 2), (Sampling(seed=7), 3), (Sampling(seed=8), 0))
    ]
    found = []
    for option in options:
        request = engine.generate(PROMPT, option)
        request.run()
        found.append(request.ids)
    together = [engine.submit(PROMPT[i:], option) for i, option in enumerate(options)]
    return found + [request.ids for request in together if request.result() is not None]


@pytest.mark.parametrize("share", SHARES)
def test_texts_and_rows_are_the_cpus(package: Path, share: float) -> None:
    """Of prompts, verifies with rejects, drafts and several sequences, captured too."""
    on_cpu = load(package, device="cpu", context=CAPACITY, sequences=3)
    on_both = engine_of(package, share)
    held = [notice for notice in on_both.model.notices if "the GPU holds" in notice]
    assert bool(held) == (share < 1)
    assert texts(on_both) == texts(on_cpu)
    assert rows_of_steps(on_both) == rows_of_steps(on_cpu)


@pytest.mark.parametrize("share", SHARES[:3])
@pytest.mark.parametrize("captured", [False, True])
def test_what_a_step_does(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch, captured: bool, share: float
) -> None:
    """No copy but of inputs and results, and one wait; the GPU works while the host does.

    A captured step calls the host once, others when each layer begins, and to wait for the host's answer.
    """
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", "1" if captured else "0")
    seen = events_of_verifies(gpu, engine_of(package, share), PROMPT, [4, 5])
    events = seen[-1]
    assert not [event for event in events if event.startswith(("allocate", "free", "fill", "error", "capture"))]
    assert count(events, "wait") == 1
    assert copied(events, "pageable", "device") == copied(events, "device", "pageable") == 0
    assert count(events, "copy") <= 3
    kind, call = "launch", "host function"
    if captured:
        assert count(events, "replay") == 1
        kind, call = "captured", "captured host function"
        events = next(events for events in seen if count(events, "capture ends"))
    work = [event.split()[-1] if event.startswith(f"{kind} own") else event for event in events]
    handed = [number for number, event in enumerate(work) if event == "hand_over"]
    calls = [number + 1 for number, event in enumerate(work) if event == call]
    assert len(handed) == _LAYERS
    awaited = [number for number, event in enumerate(work) if event == "await_host"]
    assert calls == (handed[:1] if captured else sorted(handed + awaited))
    between = []
    for start in handed:
        end = work.index("await_host", start)
        between.append(work[start + 1 : end][:2])
        assert work[end + 1] == "sum_both"
    assert (["bucket", "prepare_int8"] in between) == bool(share)


def test_a_host_that_does_not_answer_is_given_up(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step fails, without a wait for each layer; when the answer has come, steps are right again."""
    engine, library = engine_of(package, 0.5), CudaLibrary(library_path("cuda"))
    functions = (ctypes.c_void_p * 5)(*(ctypes.c_void_p * 5).from_address(host_experts()))
    nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda step: None)
    functions[2] = ctypes.cast(nothing, ctypes.c_void_p).value  # `open`: nobody looks for mail
    sequence = engine.steps.new_sequence()
    engine.steps.prefill([sequence], [PROMPT])
    for _ in range(3):
        gpu.events()
        engine.steps.verify([sequence], [[4, 5]])
    assert count(gpu.events(), "replay") == 1
    with monkeypatch.context() as patch:
        patch.setenv("TRIGRAPH_EMULATED_HASTE", "1")
        library.use_host_experts(ctypes.addressof(functions))
        with pytest.raises(TrigraphError, match="the host has not computed its experts in 120 seconds"):
            engine.steps.verify([sequence], [[4, 5]])
        engine.steps.release(sequence)
        library.use_host_experts(host_experts())
    with pytest.raises(TrigraphError, match="the host has not computed its experts"):
        engine.steps.prefill([other := engine.steps.new_sequence()], [PROMPT])  # the answer comes meanwhile
    engine.steps.release(other)
    assert rows_of_steps(engine) == rows_of_steps(load(package, device="cpu", context=CAPACITY, sequences=3))


def test_budgets_that_cannot_be(package: Path) -> None:
    for budget, words in (
        (1 << 30, r"the GPU may take 1\.07 GB, and the model needs 1\.\d+ GB there, even with all layers on the CPU"),
        (1 << 40, r"gpu_memory is 1,099\.51 GB, and the GPU has 137\.44 GB in all"),
        (0, "gpu_memory"),
    ):
        with pytest.raises(TrigraphError, match=words):
            load(package, device="cuda", gpu_memory=budget, context=CAPACITY)


def test_a_gpu_that_others_fill(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the device takes what is free, which here holds a part of the experts."""
    budget, total = budget_for(package, 0.5, context=CAPACITY, sequences=2), 128 << 30
    monkeypatch.setattr(CudaLibrary, "free_memory", lambda library: (budget, total))
    engine = load(package, device="cuda", context=CAPACITY)
    assert any("the GPU holds" in notice for notice in engine.model.notices)
    assert texts(engine) == texts(load(package, device="cpu", context=CAPACITY))
