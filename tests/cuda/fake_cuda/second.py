"""A model on the second of two GPUs."""

from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, count
from support.models.packages import Packages
from support.requests.moved import moved_between
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.execution.prefill_speed import PrefillSpeed

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-moe", "Q4_K_M")


def text(engine: Engine, seed: int) -> list[int]:
    request = engine.generate(PROMPT, Options(Sampling(seed=seed), max_tokens=6, ignore_eos=True, draft_tokens=2))
    request.run()
    return request.ids


def test_all_of_it_is_on_the_gpu_of_that_number(package: Path, gpu: FakeDevice) -> None:
    """Weights, state, scratch memory, launches and copies; another engine in the same threads is on the first one."""
    gpu.events()
    first, second = (load(package, device=device, context=64) for device in ("cuda", "cuda:1"))
    expected = load(package, device="cpu", context=64)
    weights = gpu.allocated(1)
    assert weights > 0 and 0.9 < weights / gpu.allocated(0) < 1.1
    for seed in (7, 8):
        assert text(first, seed) == text(second, seed) == text(expected, seed)
    assert not count(gpu.events(), "error")
    second.close()
    taken = gpu.allocated(0)
    del second
    assert gpu.allocated(1) < weights / 2 and gpu.allocated(0) == taken


def test_streams_that_move_between_gpus_are_those_that_stay(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 20 tokens, with their state."""
    monkeypatch.setattr(PrefillSpeed, "seconds", lambda _, tokens: 1e9)
    pair = load(package, device="cuda", context=128), load(package, device="cuda:1", context=128)
    option = Options(Sampling(seed=7), max_tokens=70, ignore_eos=True, draft_tokens=2)
    found = moved_between(pair, PROMPT, option, 20)
    assert found.moves >= 2 and found.states == found.moves
    whole = load(package, device="cpu", context=128).generate(PROMPT, option)
    assert found.request.text == whole.run() and found.request.ids == whole.ids


def test_a_gpu_that_is_not_there(package: Path) -> None:
    with pytest.raises(TrigraphError, match="number 3 was asked for, and CUDA shows 3, counted from 0"):
        load(package, device="cuda:3")
    with pytest.raises(TrigraphError, match="behind cuda: comes the number of a GPU, such as cuda:1"):
        load(package, device="cuda:x")
