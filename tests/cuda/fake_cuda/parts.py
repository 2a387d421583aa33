"""A model over two and three GPUs, under ONNX Runtime's own provider: what a step does when, and a GPU that is full."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, copied, count, events_of_verifies, waits_of_a_round
from support.devices.placed import budget_for_layers, host_layers, parts_of
from support.models.packages import Packages
from support.requests.moved import asked, moved_between
from support.requests.step_rows import rows_of_steps
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.device.cuda.device import CudaDevice
from trigraph.runtime.device.cuda.weight_source import CudaWeightSource
from trigraph.runtime.engine.config import EngineConfig
from trigraph.runtime.execution.prefill_speed import PrefillSpeed

PROMPT = [3, 1, 4, 1, 5]
CAPACITY = 128
GPUS = "cuda:0,cuda:1"
THREE = "cuda:0,cuda:1,cuda:2"


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-dense", "Q4_K_M")


def engine_of(package: Path, split: Sequence[int] = (2, 2), device: str = GPUS, chunk: int | None = None) -> Engine:
    return load(package, device=device, split=split, context=CAPACITY, sequences=3, chunk=chunk)


def on_cpu(package: Path) -> Engine:
    return load(package, device="cpu", context=CAPACITY, sequences=3)


def texts(engine: Engine) -> list[list[int]]:
    """Greedy and sampled, with drafts, alone; then three together."""
    options = [
        Options(sampling, max_tokens=8, ignore_eos=True, draft_tokens=drafts)
        for sampling, drafts in ((Sampling(temperature=0), 2), (Sampling(seed=7), 3), (Sampling(seed=8), 0))
    ]
    alone = [engine.generate(PROMPT, option) for option in options]
    for request in alone:
        request.run()
    with engine.steps.lock:  # so that one round takes in all, and they need the same memory each time
        together = [engine.submit(PROMPT[i:], option) for i, option in enumerate(options)]
    return [request.ids for request in [*alone, *together] if request.result() is not None]


def test_texts_and_rows_are_the_cpus(packages: Packages, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompts, verifies with rejects, drafts and several sequences, captured as soon as can be."""
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", "1")
    package = packages("tiny-streams", "Q4_K_M")
    expected, found = on_cpu(package), engine_of(package, (1, 3))
    gpu.events()
    assert rows_of_steps(found) == rows_of_steps(expected)
    assert texts(found) == texts(expected)
    assert count(events := gpu.events(), "replay") and not count(events, "error")


@pytest.mark.parametrize(("device", "split"), [(GPUS, (2, 2)), (THREE, (1, 1, 2))])
@pytest.mark.parametrize("captured", [False, True])
def test_what_a_verify_does(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch, captured: bool, device: str, split: Sequence[int]
) -> None:
    """A copy in for each part, rows from one to the next, a copy out; the host waits at the end, when all is done."""
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", "1" if captured else "0")
    parts, tokens = len(split), [4, 5]
    whole = load(package, device="cuda", context=CAPACITY, sequences=3)
    one = events_of_verifies(gpu, whole, PROMPT, tokens)[-1]
    engine = engine_of(package, split, device)
    events = events_of_verifies(gpu, engine, PROMPT, tokens)[-1]
    assert not [event for event in events if event.startswith(("allocate", "free", "fill", "error", "capture"))]
    assert count(events, "wait") == parts and all(event == "wait stream" for event in events[-parts:])
    assert count(events, "hold stream") == parts - 1
    assert copied(events, "pageable", "device") == copied(events, "device", "pageable") == 0
    row = 4 * engine.steps.state.limits.hidden
    rows = 2 * (parts - 1) * len(tokens) * row  # at each end the sum so far, and what is to be added
    assert count(events, "copy") == parts + 2 * (parts - 1) + 1
    assert copied(events, "device", "pinned") == copied(one, "device", "pinned") + rows
    assert rows <= copied(events, "pinned", "device") < rows + 4096 * parts
    assert count(events, "replay") == (parts if captured else 0)
    assert count(events, "launch") == (0 if captured else count(one, "launch"))


@pytest.mark.parametrize(("device", "split"), [(GPUS, (2, 2)), (THREE, (1, 1, 2)), ("cuda:0,cuda:0", (1, 3))])
def test_rows_go_straight_to_gpus_that_reach_each_other(
    package: Path, gpu: FakeDevice, device: str, split: Sequence[int]
) -> None:
    """Not by the host's memory, but for embeddings that pass a part; the maker's next step waits for the copy."""
    tokens, expected = list(range(3, 43)), on_cpu(package)
    with gpu.peers():
        engine = engine_of(package, split, device, chunk=40)
        for _ in range(3):
            sequence = engine.steps.new_sequence()
            gpu.events()
            engine.steps.prefill([sequence], [tokens])
            prompt = gpu.events()
            engine.steps.verify([sequence], [[4, 5]])
            verify = gpu.events()
            engine.steps.release(sequence)
        assert rows_of_steps(engine) == rows_of_steps(expected)
        assert texts(engine) == texts(expected)
    assert not count([*prompt, *verify, *gpu.events()], "error")
    row, borders, pieces = 4 * engine.steps.state.limits.hidden, len(split) - 1, 4
    assert copied(verify, "device", "device") >= 2 * borders * row
    assert count(verify, "hold stream") == 2 * borders and count(verify, "wait") == len(split)
    assert copied(verify, "pinned", "device") < 4096 * len(split)
    assert count(prompt, "wait") == len(split)
    passing = (len(split) - 2) * len(tokens) + pieces - 1  # embeddings, and the last hidden row of a piece
    assert passing * row <= copied(prompt, "pinned", "device") < passing * row + 8192 * pieces * len(split)


def test_what_a_prompt_does(package: Path, gpu: FakeDevice) -> None:
    """Four pieces follow each other before the host waits; embeddings go to the MTP head, behind the last layer."""
    engine, tokens, pieces = engine_of(package, chunk=40), list(range(3, 43)), 4
    for _ in range(3):
        sequence = engine.steps.new_sequence()
        gpu.events()
        engine.steps.prefill([sequence], [tokens])
        engine.steps.release(sequence)
    events, row = gpu.events(), 4 * engine.steps.state.limits.hidden
    assert count(events, "wait") == 2 and all(event == "wait stream" for event in events[-2:])
    assert (count(events, "hold stream"), count(events, "copy")) == (pieces, pieces * (2 + 3) + (pieces - 1) + 1)
    rows = 3 * len(tokens) * row + (pieces - 1) * row  # the last hidden row of a piece goes to the next one
    assert rows <= copied(events, "device", "pinned") < rows + 4096
    assert rows <= copied(events, "pinned", "device") < rows + 8192 * pieces


@pytest.mark.parametrize(("device", "split"), [(GPUS, (1, 3)), (THREE, (1, 1, 2))])
def test_pieces_in_flight_have_the_bits(packages: Packages, gpu: FakeDevice, device: str, split: Sequence[int]) -> None:
    """Of prompts that end in the same piece, and in pieces of their own."""
    package = packages("tiny-streams", "Q4_K_M")
    expected, found = on_cpu(package), engine_of(package, split, device, chunk=8)
    assert rows_of_steps(found) == rows_of_steps(expected)
    assert texts(found) == texts(expected)


@pytest.mark.parametrize("drafts", [0, 2])
def test_what_a_round_does(package: Path, gpu: FakeDevice, drafts: int) -> None:
    """Drafts go from the last GPU to the first one, and the host waits for the end alone."""
    engine = engine_of(package)
    assert waits_of_a_round(gpu, engine, PROMPT, drafts) == 2


def test_what_lies_where(package: Path, gpu: FakeDevice) -> None:
    """Weights and state of a GPU's layers are on it alone, and go with the engine; progress is that of all GPUs."""
    taken, told = [], list[int]()

    def progress(stage: str, done: int, total: int) -> None:
        told.append(done)

    for split in ((1, 3), (3, 1)):
        told.clear()
        before = [gpu.allocated(number) for number in (0, 1)]
        settings = EngineConfig(device=GPUS, split=split, context=CAPACITY, sequences=3)
        engine = load(package, settings, progress=progress)
        assert told == sorted(told) and len(told) > 1
        taken.append([gpu.allocated(number) - before[number] for number in (0, 1)])
        del engine
        assert [gpu.allocated(number) for number in (0, 1)] <= before
    assert taken[0][0] < taken[1][0] and taken[0][1] > taken[1][1]
    assert sum(taken[0]) == pytest.approx(sum(taken[1]), rel=0.1)


def test_streams_that_move_are_those_that_stay(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 12 tokens, with their state, between engines on one GPU and two."""
    monkeypatch.setattr(PrefillSpeed, "seconds", lambda _, tokens: 1e9)
    package = packages("tiny-moe", "Q4_K_M")
    pair, option = (engine_of(package, (1, 3)), engine_of(package, (2, 2), "cuda:1,cuda:1")), asked(30)["drafted"]
    whole = on_cpu(package).generate(PROMPT, option)
    whole.run()
    found = moved_between(pair, PROMPT, option, 12)
    assert found.request.ids == whole.ids and found.moves == found.states > 0


@pytest.mark.parametrize(("device", "number"), [(GPUS, 0), (GPUS, 1), (THREE, 1)])
def test_a_gpu_that_is_full_at_loading(package: Path, gpu: FakeDevice, device: str, number: int) -> None:
    """By default what is free decides: layers go to the others, or a sentence says what is missing."""
    last = device.count(",")
    with gpu.limited(0, number):
        if number == last:
            with pytest.raises(TrigraphError, match=r"the last GPU may take 0\.00 GB, and the model needs 1\.0"):
                load(package, device=device, context=CAPACITY, sequences=3)
            return
        engine = load(package, device=device, context=CAPACITY, sequences=3)
    assert not host_layers(engine) and len(parts_of(engine)) == last
    assert texts(engine) == texts(on_cpu(package))


def test_a_gpu_that_others_fill_while_a_model_is_loaded(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named."""
    monkeypatch.setattr(CudaDevice, "free_memory", lambda _: 128 << 30)
    with (
        gpu.limited(0, 1),
        pytest.raises(TrigraphError, match=r"GPU 1 has 0 of .* MB free, and"),
    ):
        engine_of(package)


@pytest.mark.parametrize(("device", "split", "number"), [(GPUS, (2, 2), 0), (GPUS, (2, 2), 1), (THREE, (1, 1, 2), 1)])
def test_a_gpu_that_is_full_while_serving(
    package: Path, gpu: FakeDevice, device: str, split: Sequence[int], number: int
) -> None:
    """Requests fail alone, in a sentence that names it; later ones do not, once there is memory."""
    engine, expected = engine_of(package, split, device), texts(on_cpu(package))
    words = rf"(GPU {number} has no memory left; close|GPU {number} has .* MB are needed; load)"
    with gpu.full(number=number), pytest.raises(TrigraphError, match=words):
        texts(engine)
    assert texts(engine) == expected


def test_experts_go_back_from_the_gpu_that_is_full(
    packages: Packages, gpu: FakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one keeps its own, and texts stay."""
    package = packages("tiny-moe", "Q4_K_M")
    whole, last = (budget_for_layers(package, count, CAPACITY, 3) + 500_000 for count in (0, 2))
    budgets = [whole - last + (1 << 30) + 500_000, last]
    engine = load(package, device=GPUS, gpu_memory=budgets, split=(2, 2), context=CAPACITY, sequences=3)
    sources = [source for _, source in parts_of(engine)]
    expected = texts(on_cpu(package))
    assert all(isinstance(source, CudaWeightSource) and source.moving is not None for source in sources)
    with gpu.full(left=450_000, number=1):
        found = texts(engine)
    assert found == expected == texts(engine)
    assert "GPU 1 has no memory left: it gives back that of" in caplog.text and "GPU 0" not in caplog.text
