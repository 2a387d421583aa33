"""Long prompts of layers of the 35B-A3B, most with the host's experts. Nothing is computed: sizes and order count."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, copied, count
from support.devices.placed import source_of
from support.models.hollow import write_hollow
from support.weight_batches import batches_of, check_waits
from trigraph.runtime import Engine, load
from trigraph.runtime.device.cuda import weight_source
from trigraph.runtime.device.mapped_weights import MappedWeights
from trigraph.runtime.device.parts.placing import WORKING_BYTES

_BATCH = 128 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("layers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr(ctypes, "memmove", lambda *_: None)
        patch.setattr(weight_source, "free_memory", lambda: 1 << 40)
        patch.setattr(MappedWeights, "read_ahead", lambda _: None)  # 3 GB of holes, as far as it gets
        yield write_hollow("qwen3.6-35b-a3b", folder / "model.gguf", layers=4)


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return load(model, device="cuda", experts="cpu", context=8192, sequences=2)


@pytest.mark.parametrize(("tiles", "resident"), [("wide_tiles", 2), ("tall_tiles", 1)])
def test_a_mixture_on_the_gpu_takes_4096_tokens_at_once(
    model: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch, tiles: str, resident: int
) -> None:
    """Where there is memory: all experts of a layer have one plan, and its tiles come to as many blocks as fit.

    With planes, all products of types that have them but the experts' go another way, in one block a multiprocessor.
    """
    if tiles == "tall_tiles":
        monkeypatch.setenv("TRIGRAPH_TALL_TILES", "1")
    whole = load(model, device="cuda", context=8192, sequences=2)
    before, _ = gpu.allocated(), gpu.most_allocated()
    sequence = whole.steps.new_sequence()
    gpu.launches()
    whole.steps.prefill([sequence], [[3] * 4096])
    launches = gpu.launches()
    monkeypatch.setenv("TRIGRAPH_PLANES", "1")
    whole.steps.prefill([sequence], [[3] * 4096])
    planes = [launch for launch in gpu.launches() if "plane_tiles" in launch.kernel]
    whole.steps.release(sequence)
    assert 1 << 29 < gpu.most_allocated() - before < WORKING_BYTES + (3 << 28)
    assert sum("bucket" in launch.kernel for launch in launches) == 4
    blocks = [launch.blocks for launch in launches if tiles in launch.kernel]
    assert len(blocks) >= 3 * 4 and max(blocks) == resident * 132
    assert not any("plane_tiles" in launch.kernel for launch in launches)
    assert planes and {(launch.blocks, launch.threads) for launch in planes} == {(132, 256)}


def events_of_a_prompt(gpu: FakeDevice, engine: Engine, tokens: int) -> list[str]:
    sequence = engine.steps.new_sequence()
    gpu.events()
    engine.steps.prefill([sequence], [[3] * tokens])
    engine.steps.release(sequence)
    return gpu.events(streams=True)


def test_a_step_takes_no_more_memory_when_it_is_seen_again(engine: Engine, gpu: FakeDevice) -> None:
    """Nor pinned memory, where the file is registered. No prompt is the CPU's because nothing is known."""
    pinned = gpu.pinned()
    assert not count(events_of_a_prompt(gpu, engine, 1200), "host function")
    before, _ = gpu.allocated(), gpu.most_allocated()
    assert not count(events_of_a_prompt(gpu, engine, 1200), "allocate")
    assert gpu.most_allocated() == before
    assert gpu.pinned() - pinned < 1 << 20


def test_weights_are_copied_once_a_step_ahead_of_products(engine: Engine, gpu: FakeDevice) -> None:
    """And from pinned memory alone; a piece has 4,096 tokens at most."""
    share = source_of(engine).share
    assert share is not None
    layers = [layer for layer in share.weights.layers if not layer.head]
    events_of_a_prompt(gpu, engine, 1200)  # an engine's first one copies some weights beside the step, to know the time
    for tokens, steps in ((2048, 1), (4096, 1), (8192, 2)):
        events = events_of_a_prompt(gpu, engine, tokens)
        batches = batches_of(events)
        assert sum(batch.nbytes for batch in batches) == steps * sum(
            layer.experts * layer.expert_bytes for layer in layers
        )
        assert all(0.9 * _BATCH < batch.nbytes <= _BATCH for batch in batches)
        assert copied(events, "pageable", "device") == 0 and not count(events, "host function")
        assert count(events, "launch own bucket on") == steps * len(layers)
        begun = [number for number, event in enumerate(events) if event.startswith("launch own bucket")]
        last = max(number for number, event in enumerate(events) if event.startswith("copy pinned device"))
        if steps == 1:  # all is enqueued at once
            check_waits(batches)
            assert not count(events[begun[0] : last], "wait")
