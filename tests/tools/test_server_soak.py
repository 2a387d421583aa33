"""Hostile requests of a soak, sent to a server on the fake model: each has an answer that is not the server's fault."""

from __future__ import annotations

import asyncio
import random
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed: no replicas (pip install 'ray[serve]')")

import server_soak
from hostile import KINDS, Attempt

from support.fakes.engine import VOCAB, engine_of
from support.servers.ray_cluster import MARK
from support.servers.scripted import serving
from trigraph.runtime.server.settings import Settings

CHEAP = [kind for kind in KINDS if kind not in ("huge", "slow", "schema", "grammar")]


@pytest.fixture
def soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[server_soak.Soak]:
    engine = engine_of(lambda history: np.eye(1, VOCAB, len(history) % 90, np.float32)[0], context=200)[0]
    (tmp_path / "log").write_text("")
    monkeypatch.setenv(MARK, "none")
    with serving(engine, Settings(port=0)) as address:
        found: Any = Namespace(address=address, log=tmp_path / "log")
        options = Namespace(kinds=CHEAP, hostile=1.0, seed=0, ray=None, requests=40, clients=4, minutes=10, short=True)
        yield server_soak.Soak(found, [], [], options, set())


@pytest.mark.slow
def test_hostile_requests_have_answers(soak: server_soak.Soak, capsys: pytest.CaptureFixture[str]) -> None:
    async def send() -> None:
        for number in range(40):
            await soak._one(number)

    asyncio.run(send())
    assert not soak.seen.faults
    assert sum(sum(counts.values()) for counts in soak.seen.statuses.values()) == 40
    assert len(soak.seen.statuses) > 6
    assert soak.report() == 0 and "0 faults" in capsys.readouterr().out


@pytest.mark.parametrize("status", [500, None])
def test_what_must_not_be_is_told(
    soak: server_soak.Soak, status: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answered(self: server_soak.Soak, attempt: Attempt) -> int | None:
        return status

    monkeypatch.setattr(server_soak.Soak, "_attempt", answered)
    soak.options.kinds = ["absurd"]
    asyncio.run(soak._one(0))
    soak.server.log.write_text("Traceback (most recent call last)")
    soak.texts = ["a"]
    soak._compare(0, "b")
    assert soak.report() == 1 and len(soak.seen.faults) == 3
    assert "ordinary completion 0 differs" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [kind for kind in CHEAP if kind not in ("bias", "image")])
def test_requests_follow_from_their_number(kind: str) -> None:
    make, _ = KINDS[kind]
    assert make(random.Random(5)) == make(random.Random(5))
