"""Prompts beside requests that decode, on a device with known costs and a clock of its own. Nothing is computed."""

import time

import pytest

from support.devices.fake_cuda import FakeDevice
from support.models.packages import Packages
from trigraph.runtime import Options, Sampling, load
from trigraph.runtime.device.cuda.library import CudaLibrary
from trigraph.runtime.execution.sessions import Binding, SessionGraph

VERIFY, PIECE, TOKEN = 6.5e-3, 1e-3, 80e-6
"""Seconds of a verify, of a piece of a prompt, and more for each token of it: those of an H100, roughly."""


class Machine:
    """Notes steps by graph and tokens, and has their time pass when they are waited for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, int]] = []
        self._now = self._running = 0.0
        bind, wait = SessionGraph.bind, CudaLibrary.wait

        def noted(graph: SessionGraph, tokens: int, sequences: int, images: int = 0) -> Binding:
            self.steps.append((graph._name, tokens))
            self._running += VERIFY if graph._name == "verify" else PIECE + TOKEN * tokens
            return bind(graph, tokens, sequences, images)

        def waited(library: CudaLibrary) -> None:
            wait(library)
            self._now, self._running = self._now + self._running, 0.0

        patch.setattr(SessionGraph, "bind", noted)
        patch.setattr(CudaLibrary, "wait", waited)
        patch.setattr(time, "perf_counter", lambda: self._now)


@pytest.mark.parametrize("prompts", [1, 2])
def test_decodes_are_held_up_by_no_more_than_their_own_time(
    packages: Packages, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch, prompts: int
) -> None:
    """Between two verifies of all comes one piece, which takes no longer than one of them."""
    engine = load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=4096, sequences=16)
    machine = Machine(monkeypatch)
    options = Options(Sampling(temperature=0), max_tokens=400, ignore_eos=True, draft_tokens=0)
    decoding = 4 * prompts + 4
    with engine.steps.lock:
        running = [engine.submit([3, 1, 4, i], options) for i in range(decoding)]
        running[0].listen(lambda: begin() if len(running[0].ids) == 40 else None)
    long: list[object] = []

    def begin() -> None:
        first_token = Options(Sampling(temperature=0), max_tokens=1, ignore_eos=True)
        long.extend(engine.submit([5 + i, *[7] * 2999], first_token) for i in range(prompts))

    for request in running:
        request.result(100)
    steps = machine.steps
    first = next(i for i, step in enumerate(steps) if step == ("verify", decoding))
    pieces = [(i, tokens) for i, (graph, tokens) in enumerate(steps) if graph == "prefill" and i > first]
    assert len(long) == prompts and sum(tokens for _, tokens in pieces) == 3000 * prompts
    assert all(steps[i - 1] == ("verify", decoding) for i, _ in pieces)
    assert all(PIECE + TOKEN * tokens < VERIFY for _, tokens in pieces), pieces
