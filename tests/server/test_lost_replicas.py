"""What a client hears while replicas do not last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import httpx2 as httpx
import pytest

from support.fakes.engine import engine_of
from support.fakes.rounds import LOGITS, tokens
from support.servers.dying_replicas import DyingReplicas
from support.servers.scripted import serving
from trigraph.runtime import Options, Sampling
from trigraph.runtime.server.cluster import remote_engine
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine, ReplicaLostError
from trigraph.runtime.server.cluster.replica import Ticket, Update
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.settings import Settings

SAMPLED = Options(Sampling(temperature=0.9, seed=3), max_tokens=40, ignore_eos=True)


class Played(DyingReplicas):
    """Replicas of which the first `lost` are lost at once; the next one begins when `seen` is set."""

    def __init__(self, lost: int = 0) -> None:
        super().__init__(engine_of(LOGITS, context=200)[0])
        self.lost, self.seen, self.tickets = lost, threading.Event(), 0

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        self.tickets += 1
        if self.tickets <= self.lost:
            raise ReplicaLostError
        while not self.seen.is_set():
            await asyncio.sleep(0.01)
        async for update in super().complete(ticket):
            yield update


async def text_of(engine: RemoteEngine) -> str:
    return "".join([piece async for piece in engine.generate(tokens(9), SAMPLED)])


def test_replicas_that_end_faster_than_they_start_fail_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock from the first loss without a token on; two losses are bad luck, however long they take."""
    monkeypatch.setattr(remote_engine, "_LOSING_SECONDS", 0.0)
    monkeypatch.setattr(remote_engine, "_FIRST_PAUSE", 0.0)
    replicas = Played(lost=20)
    with pytest.raises(ApiError, match="3 replicas in a row were lost") as raised:
        asyncio.run(text_of(replicas.front()))
    assert (raised.value.status, replicas.tickets) == (503, 3)
    two = Played(lost=2)
    two.seen.set()
    assert asyncio.run(text_of(two.front())) and two.tickets > 2


def test_a_stream_has_signs_of_life_while_replicas_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.server.answer._KEEP_ALIVE_SECONDS", 0.01)
    replicas, body = Played(), {"prompt": "a", "max_tokens": 3, "stream": True}
    with (
        serving(replicas.front(), Settings(port=0)) as address,
        httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as response,
    ):
        lines = response.iter_lines()
        assert [next(lines) for _ in range(4)] == [": waiting", "", ": waiting", ""]
        replicas.seen.set()
        assert [line for line in lines if line][-1] == "data: [DONE]"
