"""Whole layers on the CPU, under ONNX Runtime's own provider: the CPU's bits, and what a step does when."""

from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, copied, count, events_of_verifies, waits_of_a_round
from support.devices.placed import budget_for_layers, host_layers, source_of, weights_of_package
from support.models.packages import Packages
from support.models.seeing import SeeingPackages, prompt_of
from support.requests.moved import asked, moved_between
from support.requests.promise import sequence_bits
from support.requests.step_rows import rows_of_steps
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.cache.session_file import SessionFile
from trigraph.runtime.engine.config import EngineConfig
from trigraph.runtime.execution.prefill_speed import PrefillSpeed

PROMPT = [3, 1, 4, 1, 5]
CAPACITY = 128
LAYERS = 4
ON_HOST = (0, 1, 2, 4)


@pytest.fixture(params=["tiny-dense", "tiny-moe"])
def package(packages: Packages, request: pytest.FixtureRequest) -> Path:
    return packages(request.param, "Q4_K_M")


def engine_of(package: Path, on_host: int, more: int = 0) -> Engine:
    """Whose CPU computes so many layers; its GPU may take `more` bytes for experts."""
    budget = budget_for_layers(package, on_host, CAPACITY, 3) + more
    engine = load(package, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=3)
    assert host_layers(engine) == on_host
    return engine


def on_cpu(package: Path) -> Engine:
    return load(package, device="cpu", context=CAPACITY, sequences=3)


def texts(engine: Engine) -> list[list[int]]:
    """Greedy and sampled, with drafts, alone; then three together."""
    options = [
        Options(sampling, max_tokens=10, ignore_eos=True, draft_tokens=drafts)
        for sampling, drafts in (
            (Sampling(temperature=0), 2),
            (Sampling(seed=7), 3),
            (Sampling(seed=8), 0),
            (Sampling(seed=9, repeat_penalty=1.1), 2),
        )
    ]
    found = []
    for option in options:
        request = engine.generate(PROMPT, option)
        request.run()
        found.append(request.ids)
    with engine.steps.lock:  # so that one round takes in all, and they need the same memory each time
        together = [engine.submit(PROMPT[i:], option) for i, option in enumerate(options[:3])]
    return found + [request.ids for request in together if request.result() is not None]


@pytest.mark.parametrize("on_host", ON_HOST)
def test_texts_and_rows_are_the_cpus(package: Path, on_host: int) -> None:
    """Of prompts, verifies with rejects, drafts and several sequences, captured too; and state, in either memory."""
    expected, found = on_cpu(package), engine_of(package, on_host)
    notices = [notice for notice in found.model.notices if f"computes the first {on_host} of {LAYERS} layers" in notice]
    assert len(notices) == bool(on_host)
    assert texts(found) == texts(expected)
    assert rows_of_steps(found) == rows_of_steps(expected)
    bits = []
    for engine in (found, expected):
        engine.cache.clear()
        sequence = engine.steps.new_sequence()
        engine.steps.prefill([sequence], [list(range(3, 80))])
        for accepted in (2, 0, 3):
            engine.steps.verify([sequence], [[5, 6, 7]])
            engine.steps.keep(sequence, accepted)
        bits.append(sequence_bits(engine, sequence))
    assert bits[0] == bits[1]


@pytest.mark.parametrize(("on_host", "more"), [(1, 200_000), (2, 400_000)])
def test_with_some_of_the_experts(packages: Packages, on_host: int, more: int) -> None:
    """Of the layers that the GPU computes."""
    package = packages("tiny-moe", "Q4_K_M")
    engine = engine_of(package, on_host, more)
    share = source_of(engine).share
    assert share is not None and share.is_split and any(share.slots.values())
    assert texts(engine) == texts(on_cpu(package))


@pytest.mark.parametrize("on_host", ON_HOST[1:])
@pytest.mark.parametrize("captured", [False, True])
def test_what_a_step_does(
    package: Path, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch, captured: bool, on_host: int
) -> None:
    """One wait, at the end, and one copy in and one out: rows go with the inputs, and no weights and no state."""
    monkeypatch.setenv("TRIGRAPH_CUDA_GRAPHS", "1" if captured else "0")
    engine = engine_of(package, on_host)
    events = events_of_verifies(gpu, engine, PROMPT, tokens := [4, 5])[-1]
    assert not [event for event in events if event.startswith(("allocate", "free", "fill", "error", "capture"))]
    assert count(events, "wait") == 1 and events[-1].startswith("wait")
    assert copied(events, "pageable", "device") == copied(events, "device", "pageable") == 0
    assert count(events, "copy") == 2
    rows = 2 * len(tokens) * 4 * engine.steps.state.limits.hidden  # the sum so far, and what is to be added
    assert rows <= copied(events, "pinned", "device") < rows + 4096
    assert bool(count(events, "replay")) == captured


def test_what_a_prompt_does(packages: Packages, gpu: FakeDevice) -> None:
    """The CPU computes the pieces one after the other, and waits for the GPU at the end."""
    package = packages("tiny-dense", "Q4_K_M")
    budget = budget_for_layers(package, 2, CAPACITY, 3)
    engine = load(package, device="cuda", gpu_memory=budget, context=CAPACITY, sequences=3, chunk=40)
    found = []
    for each in (engine, on_cpu(package)):
        sequence = each.steps.new_sequence()
        gpu.events()
        found.append(each.steps.prefill([sequence], [list(range(3, 43))]).hidden.tobytes())
        events = gpu.events()
        assert count(events, "wait") == (each is engine) and (each is not engine or events[-1].startswith("wait"))
    assert found[0] == found[1] and host_layers(engine) == 2


@pytest.mark.parametrize("drafts", [0, 2])
def test_what_a_round_does(packages: Packages, gpu: FakeDevice, drafts: int) -> None:
    """The host waits for drafts, which it must know, and for the end."""
    engine = engine_of(packages("tiny-dense", "Q4_K_M"), 2)
    assert waits_of_a_round(gpu, engine, PROMPT, drafts) == 1 + bool(drafts)


def test_what_lies_where(packages: Packages, gpu: FakeDevice) -> None:
    """Weights and state of the CPU's layers take no memory of the GPU."""
    package = packages("tiny-dense", "Q4_K_M")
    taken, state = [], []
    for on_host in ON_HOST:
        before = gpu.allocated()
        engine = engine_of(package, on_host)
        taken.append(gpu.allocated() - before)
        state.append([isinstance(tensor, type(engine.steps.state.tensors["mtp.key"])) for tensor in _trunk(engine)])
        del engine
    assert taken == sorted(taken, reverse=True) and len(set(taken)) == len(taken)
    assert [sum(on_gpu) for on_gpu in state] == sorted((sum(on_gpu) for on_gpu in state), reverse=True)
    assert all(state[0]) and not any(state[-1])


def _trunk(engine: Engine) -> list[object]:
    return [tensor for name, tensor in engine.steps.state.tensors.items() if not name.startswith("mtp.")]


def test_session_files_and_the_prefix_cache(package: Path, tmp_path: Path) -> None:
    """What one engine leaves, the other goes on from."""
    option = Options(Sampling(seed=5), max_tokens=8, ignore_eos=True, draft_tokens=2)
    prompt = list(range(3, 100))
    engines = {"layers": engine_of(package, 2), "cpu": on_cpu(package)}
    expected = engines["cpu"].generate([*prompt, 7, 8], option).run()
    engines["cpu"].cache.clear()
    for name, engine in engines.items():
        engine.generate(prompt, option).run()
        reused = engine.generate([*prompt, 7, 8], option)
        assert reused.run() == expected and reused.stats.reused_tokens > 0
        engine.cache.save(tmp_path / name, engine.identity, [*prompt, 7, 8])
        engine.cache.clear()
    for name, engine in zip(reversed(engines), engines.values(), strict=True):
        engine.cache.load(SessionFile(tmp_path / name, engine.identity, engine.steps))
        reused = engine.generate([*prompt, 7, 8], option)
        assert reused.run() == expected and reused.stats.reused_tokens > 0


@pytest.mark.parametrize("slow", [True, False])
def test_streams_that_move_are_those_that_stay(packages: Packages, monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    """Every 20 tokens, with their state or from their tokens."""
    monkeypatch.setattr(PrefillSpeed, "seconds", lambda _, tokens: 1e9 if slow else 0.0)
    package = packages("tiny-dense", "Q4_K_M")
    engines = (engine_of(package, 2), on_cpu(package))
    for name, option in asked(50).items():
        whole = engines[1].generate("In the beginning", option)
        text = whole.run()
        found = moved_between(engines, "In the beginning", option, 20)
        assert (found.request.text, found.request.ids) == (text, whole.ids), name
        assert found.moves and found.states == (found.moves if slow else 0)


@pytest.mark.parametrize("on_host", ON_HOST[1:])
def test_images(seeing: SeeingPackages, on_host: int) -> None:
    """Their rows go to the layers that take them."""
    folder, prompt = seeing("tiny-moe", "Q4_K_M", "F16"), prompt_of(2, (3, 2), 2)
    found = []
    for engine in (engine_of(folder, on_host), on_cpu(folder)):
        request = engine.generate(prompt, Options(Sampling(seed=3), max_tokens=8, ignore_eos=True, draft_tokens=2))
        request.run()
        found.append(request.ids)
    assert found[0] == found[1]


def test_experts_of_all_other_layers_on_the_cpu(packages: Packages) -> None:
    package = packages("tiny-moe", "Q4_K_M")
    budget = budget_for_layers(package, 2, CAPACITY, 3) + 200_000
    engine = load(package, device="cuda", experts="cpu", gpu_memory=budget, context=CAPACITY, sequences=3)
    share = source_of(engine).share
    assert share is not None and host_layers(engine) == 2 and not any(share.slots.values())
    assert texts(engine) == texts(on_cpu(package))


def test_experts_go_back_when_others_take_memory(
    packages: Packages, gpu: FakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that fails has moved the state of the CPU's layers, and is computed again from its tokens."""
    package = packages("tiny-moe", "Q4_K_M")
    engine, expected = engine_of(package, 1, 500_000), texts(on_cpu(package))
    with gpu.full(left=500_000):
        found = texts(engine)
    assert "GPU 0 has no memory left: it gives back that of" in caplog.text
    assert found == expected == texts(engine)


def test_with_nothing_to_give_back_requests_fail_alone(packages: Packages, gpu: FakeDevice) -> None:
    """In a sentence; later ones do not, once there is memory."""
    package = packages("tiny-dense", "Q4_K_M")
    engine, expected = engine_of(package, 2), texts(on_cpu(package))
    with gpu.full(), pytest.raises(TrigraphError, match=r"(GPU 0 has no memory left; close|MB are needed; load)"):
        texts(engine)
    assert texts(engine) == expected


def test_without_an_mtp_head(package: Path) -> None:
    """And so without its weights and an embedding on the GPU."""
    budget = budget_for_layers(package, 3, CAPACITY, 3)
    config = EngineConfig(context=CAPACITY, sequences=3, speculation=False)
    found = load(package, config, device="cuda", gpu_memory=budget)
    share = source_of(found).share
    assert share is not None and host_layers(found)
    _, rest = weights_of_package(package).divided([host_layers(found)])
    assert share.weights.trunk_bytes < rest.trunk_bytes
    assert texts(found) == texts(load(package, config))


def test_a_budget_that_holds_no_head(package: Path) -> None:
    """Even without a layer."""
    budget = budget_for_layers(package, LAYERS, CAPACITY, 3)
    with pytest.raises(TrigraphError, match=r"needs 1\.0\d GB there, even with all layers on the CPU: .*device=cpu"):
        load(package, device="cuda", gpu_memory=budget - 1, context=CAPACITY, sequences=3)
