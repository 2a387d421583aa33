"""`--experts cpu` under ONNX Runtime's own provider: its bits, and what a step does when."""

from pathlib import Path

import pytest

from support.fake_cuda import FakeDevice, copied, count
from support.packages import Packages
from trigraph.runtime import Engine, Options, Sampling, load

PROMPT = [3, 1, 4, 1, 5]
CAPACITY = 64


@pytest.fixture
def package(packages: Packages) -> Path:
    return packages("tiny-moe", "Q4_K_M")


def test_texts_are_the_cpus(package: Path) -> None:
    """Greedy and sampled, with drafts."""

    def texts(engine: Engine) -> list[list[int]]:
        found = []
        for sampling in (Sampling(temperature=0), Sampling(seed=7)):
            request = engine.generate(PROMPT, Options(sampling, max_tokens=6, ignore_eos=True, draft_tokens=2))
            request.run()
            found.append(request.ids)
        return found

    on_both = load(package, device="cuda", experts="cpu", context=CAPACITY)
    assert texts(on_both) == texts(load(package, device="cpu", context=CAPACITY))


def test_a_layer_goes_to_the_host_and_back(package: Path, gpu: FakeDevice) -> None:
    """The host waits for five inputs: rows, ids, weights, the shared expert's output and its gate. One result returns.

    By then all that the GPU can do of the layer is enqueued.
    """
    engine = load(package, device="cuda", experts="cpu", context=CAPACITY)
    sequence, tokens = engine.steps.new_sequence(), [4, 5]
    engine.steps.prefill([sequence], [PROMPT])
    for _ in range(3):  # the first two allocate
        gpu.events()
        engine.steps.verify([sequence], [tokens])
    events = gpu.events()
    layers = count(events, "launch own route_rows")
    assert layers == 4
    assert not [event for event in events if event.startswith(("allocate", "free", "fill", "error", "capture"))]
    assert count(events, "copy device pinned") == 5 * layers + 1  # and the step's results
    assert copied(events, "pageable", "device") == layers * len(tokens) * 4 * engine.steps.state.limits.hidden
    routed = [number for number, event in enumerate(events) if event == "launch own route_rows"]
    for begin in routed:
        rest = events[begin + 1 :]
        behind = rest[: next(number for number, event in enumerate(rest) if event.startswith("launch"))]
        assert [event.split()[0] for event in behind] == ["copy"] * 2 + ["wait"] * 5 + ["copy"]
