"""When the readers of requests are woken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trigraph.runtime import Options, load
from trigraph.runtime.device.device import Device
from trigraph.runtime.scheduler.wakes import Wakes


class Waiting(Device):
    """A device that computes by itself."""

    def while_waiting(self, work: Callable[[], object]) -> bool:
        works.append(work)
        return True


works: list[Callable[[], object]] = []


class Reader:
    """A request that notes when it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


@pytest.mark.parametrize("kind", [Device, Waiting])
def test_readers_are_woken_late_where_a_device_computes(kind: type[Device]) -> None:
    """Once for each round, and at once behind the last one."""
    wakes, readers = Wakes(kind(None, "no")), [Reader(), Reader()]
    late = kind is Waiting
    wakes.add(readers, more=True)  # type: ignore[arg-type]
    assert [reader.woken for reader in readers] == [not late] * 2
    if late:
        works.pop()()
    wakes.wake()
    assert [reader.woken for reader in readers] == [1, 1]
    wakes.add(readers[:1], more=False)  # type: ignore[arg-type]
    assert [reader.woken for reader in readers] == [2, 1]


def test_readers_wait_for_no_round_that_does_not_come(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that nobody waits for, every reader is woken at the end all the same."""
    monkeypatch.setattr(Device, "while_waiting", lambda device, work: True)
    engine = load(tiny_gguf, context=64, sequences=2)
    requests = [engine.submit([1, 2, 3], Options(max_tokens=5, ignore_eos=True)) for _ in range(3)]
    assert all(request.result(60) is not None for request in requests)
    assert "".join(engine.generate([4, 5], Options(max_tokens=3, ignore_eos=True)))
