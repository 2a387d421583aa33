"""When the readers of requests are woken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.fakes.rounds import finish, fresh, options, queued, run_round, tokens
from trigraph.runtime import Engine, Options, load
from trigraph.runtime.device.device import Device


class Waiting(Device):
    """A device that computes by itself."""

    def while_waiting(self, work: Callable[[], object]) -> bool:
        works.append(work)
        return True


works: list[Callable[[], object]] = []


@pytest.mark.parametrize("kind", [Device, Waiting])
def test_readers_are_woken_late_where_a_device_computes(kind: type[Device]) -> None:
    """Once for each round, and at once behind the last one."""
    engine, _ = fresh(draft=False)
    engine = Engine(replace(engine.model, device=kind(None, "no")))
    woken: list[int] = []
    request = queued(engine, tokens(4), options(max_tokens=4))
    request.wake = lambda: woken.append(len(request.ids))  # type: ignore[method-assign]
    late = kind is Waiting
    for count in (1, 2, 3):
        run_round(engine)
        assert len(request.ids) == count and woken[-1:] == ([] if late and count == 1 else [count - late])
        if late:
            works[-1]()
            assert woken[-1] == count
    finish(engine, [request])
    assert woken[-1] == 4


def test_readers_wait_for_no_round_that_does_not_come(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that nobody waits for, every reader is woken at the end all the same."""
    monkeypatch.setattr(Device, "while_waiting", lambda device, work: True)
    engine = load(tiny_gguf, context=64, sequences=2)
    requests = [engine.submit([1, 2, 3], Options(max_tokens=5, ignore_eos=True)) for _ in range(3)]
    assert all(request.result(60) is not None for request in requests)
    assert "".join(engine.generate([4, 5], Options(max_tokens=3, ignore_eos=True)))
