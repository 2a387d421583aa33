"""Device memory that others take while the engine serves."""

from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice
from support.devices.placed import budget_for, source_of
from support.models.packages import Packages
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load

CAPACITY = 96


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-moe", "Q4_K_M")


def engine_of(package: Path, share: float) -> Engine:
    budget = budget_for(package, share, context=CAPACITY, sequences=4)
    return load(package, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=4)


def held(engine: Engine) -> int:
    """Experts on the device."""
    moving = source_of(engine).moving
    return 0 if moving is None else sum(int((layer.slots >= 0).sum()) for layer in moving._layers.values())


def texts(engine: Engine, number: int) -> list[list[int]]:
    """Of requests together: prompts and drafts of other lengths for each number."""
    with engine.steps.lock:  # so that one round takes in all, and they need the same memory each time
        requests = [
            engine.submit(
                [*range(3, 6 + 7 * number + i)],
                Options(Sampling(seed=i), max_tokens=8, ignore_eos=True, draft_tokens=i),
            )
            for i in range(number)
        ]
    return [request.ids for request in requests if request.result() is not None]


@pytest.mark.parametrize("graphs", ["0", "1"])
def test_experts_go_back_and_no_request_is_lost(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, graphs: str
) -> None:
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", graphs)
    on_cpu, engine = load(package, device="cpu", context=CAPACITY, sequences=4), engine_of(package, 0.5)
    expected = [texts(on_cpu, number) for number in (1, 2, 3, 4)]
    assert texts(engine, 1) == expected[0]
    before = held(engine)
    with gpu.full():
        found = [texts(engine, number) for number in (1, 2, 3, 4)]
    assert found == expected
    assert 0 <= held(engine) < before
    assert "GPU 0 has no memory left: it gives back that of" in caplog.text
    assert [texts(engine, number) for number in (4, 1)] == [expected[3], expected[0]]


def test_with_nothing_to_give_back_requests_fail_alone(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sentence; later ones do not, once there is memory."""
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", "0")
    engine = engine_of(package, 0)
    expected = texts(load(package, device="cpu", context=CAPACITY, sequences=4), 3)
    with gpu.full(), pytest.raises(TrigraphError, match=r"(GPU 0 has no memory left; close|MB are needed; load)"):
        texts(engine, 3)
    assert texts(engine, 3) == expected
