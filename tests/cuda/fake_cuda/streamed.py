"""Long prompts where the host has experts: their weights go to the GPU ahead of the products, under ONNX Runtime."""

import gc
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, copied, count
from support.devices.placed import budget_for, parts_of, source_of
from support.models.packages import Packages
from support.weight_batches import batches_of, check_waits
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.device.cuda import weight_source
from trigraph.runtime.device.cuda.weight_source import CudaWeightSource

CONTEXT = 128
PROMPT = [*range(3, 83)]
OPTION = Options(Sampling(seed=7), max_tokens=5, ignore_eos=True, draft_tokens=2)
_LAYERS, _BUFFERS = 4, 3


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIGRAPH_STREAM_EXPERTS", "1")


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-moe", "Q4_K_M")


def engine_of(package: Path, share: float) -> Engine:
    """Whose GPU holds that share of the experts."""
    budget = budget_for(package, share, context=CONTEXT, sequences=3)
    return load(package, device="cuda:0", gpu_memory=budget, context=CONTEXT, sequences=3)


def text_of(engine: Engine, prompt: list[int] = PROMPT) -> list[int]:
    engine.cache.clear()
    request = engine.generate(prompt, OPTION)
    request.run()
    return request.ids


def hosts_bytes(engine: Engine) -> int:
    """Of the experts of the trunk that no GPU holds."""
    sources = [source for _, source in parts_of(engine) if isinstance(source, CudaWeightSource)]
    shares = [source.share for source in sources if source.share is not None]
    return sum(
        (layer.experts - share.slots[layer.name]) * layer.expert_bytes
        for share in shares
        for layer in share.weights.layers
        if not layer.head
    )


def events_of_a_prompt(gpu: FakeDevice, engine: Engine, tokens: int) -> list[str]:
    sequence = engine.steps.new_sequence()
    gpu.events()
    engine.steps.prefill([sequence], [[3 + i % 100 for i in range(tokens)]])
    events = gpu.events(streams=True)
    engine.steps.release(sequence)
    return events


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("share", [0, 0.1, 0.5])
def test_a_step_copies_the_hosts_experts_once(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch, share: float, registered: bool
) -> None:
    """From pinned memory alone; where the driver takes no mapped files, by way of four pieces."""
    monkeypatch.setattr(weight_source, "free_memory", lambda: registered << 40)
    expected = text_of(load(package, device="cpu", context=CONTEXT, sequences=3))
    engine = engine_of(package, share)
    assert text_of(engine) == expected
    for tokens, copies in ((80, 1), (64, 0)):
        events = events_of_a_prompt(gpu, engine, tokens)
        batches = batches_of(events) if copies else []
        gaps = 0 if registered else 512 * len(batches)  # matrices of a buffer are aligned
        assert 0 <= sum(batch.nbytes for batch in batches) - copies * hosts_bytes(engine) <= gaps
        assert len(batches) == copies * _LAYERS
        assert copied(events, "pageable", "device") == 0
        check_waits(batches)
    engine.close()
    del engine
    gc.collect()
    assert (count(gpu.events(), "unregister") > 0) == registered


def test_buffers_go_with_the_engine(package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three on the GPU and at most four pieces of the host's memory, taken at the first long prompt."""
    monkeypatch.setattr(weight_source, "free_memory", lambda: 0)
    before, pinned = gpu.allocated(), gpu.pinned()
    engine = engine_of(package, 0)
    loaded = gpu.pinned()
    first, second, third = (events_of_a_prompt(gpu, engine, 80) for _ in range(3))
    largest = max(batch.nbytes for batch in batches_of(third))
    sizes = [int(event.split()[2]) for event in first if event.startswith("allocate device")]
    assert sum(largest <= size <= largest + 512 for size in sizes) >= _BUFFERS
    assert 4 * largest <= gpu.pinned() - loaded < 4 * largest + (1 << 20)
    assert not count(second, "allocate device") and not count(third, "allocate")
    del engine
    gc.collect()
    assert (gpu.allocated(), gpu.pinned()) == (before, pinned)


def test_experts_go_back_where_buffers_do_not_fit(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = text_of(load(package, device="cpu", context=CONTEXT, sequences=3))
    engine = engine_of(package, 0.5)
    monkeypatch.setenv("TRIGRAPH_STREAM_EXPERTS", "0")
    assert text_of(engine) == expected
    monkeypatch.setenv("TRIGRAPH_STREAM_EXPERTS", "1")
    share = source_of(engine).share
    layers = [] if share is None else share.weights.layers
    with gpu.full(left=13 * max(layer.experts * layer.expert_bytes for layer in layers) // 10):
        assert text_of(engine) == expected
    assert "GPU 0 has no memory left: it gives back that of" in caplog.text


def test_engines_and_parts_have_buffers_of_their_own(package: Path, gpu: FakeDevice) -> None:
    """Two engines on one GPU, one after the other in each step, and a model over two GPUs."""
    expected = text_of(load(package, device="cpu", context=CONTEXT, sequences=3))
    engines = [engine_of(package, share) for share in (0, 0.5)]
    assert [text_of(engine) for engine in [*engines, *engines]] == [expected] * 4
    budget = budget_for(package, 0.2, context=CONTEXT, sequences=3)
    over_two = load(
        package, device="cuda:0,cuda:1", split=[1, 1], gpu_memory=budget, experts="cpu", context=CONTEXT, sequences=3
    )
    assert text_of(over_two) == expected
    events = events_of_a_prompt(gpu, over_two, 80)
    assert copied(events, "pageable", "device") == 0
    assert sum(int(event.split()[3]) for event in events if event.startswith("copy pinned device")) > hosts_bytes(
        over_two
    )
