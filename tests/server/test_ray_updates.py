"""Replicas on Ray Serve that become others, more or fewer while they work."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Options, Sampling, load

pytest.importorskip("ray", reason="ray is not installed: no replicas (pip install 'ray[serve]')")

from ray import serve

from support.servers.held import GivingReplica, HeldReplica
from support.servers.paced import PacedReplica
from support.servers.ray_cluster import NAME, await_replicas, engines, kill, replica_ids, states
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.server.cluster.deployment import Deployed
from trigraph.runtime.server.cluster.replica import Ticket, Update
from trigraph.runtime.server.errors import ApiError

PROMPTS = [f"{number} times it was said in the beginning that" for number in range(6)]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that holds streams back while it exists."""
    monkeypatch.setattr("trigraph.runtime.server.cluster.deployment.EngineReplica", HeldReplica)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    return tmp_path / "hold"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The tiny model with a louder last norm: other weights, other probabilities, the same tokenizer."""
    path = tmp_path / "other.gguf"
    shutil.copy(TINY_GGUF, path)
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(path, "r+").tensors}
    np.multiply(tensors["output_norm.weight"], 1.5, out=tensors["output_norm.weight"])
    return path


def asked(number: int, tokens: int) -> Options:
    return Options(Sampling(temperature=0.9, seed=number), max_tokens=tokens, ignore_eos=True)


async def text_of(stream: Handle) -> str:
    return "".join([piece async for piece in stream])


def alone(model: Path, tokens: int) -> list[str]:
    """What one engine says."""
    engine = load(model, threads=1)
    requests = [engine.submit(prompt, asked(i, tokens)) for i, prompt in enumerate(PROMPTS)]
    return [request.result() for request in requests]


@pytest.mark.slow
def test_streams_stay_with_the_version_that_began_them(other: Path, hold: Path) -> None:
    """The model is replaced while streams go on, and one of the old replicas is killed."""
    expected, tickets = alone(TINY_GGUF, 300), list[Ticket]()

    async def ask() -> tuple[list[str], list[str]]:
        complete = engine.replicas.complete

        def recorded(ticket: Ticket) -> AsyncGenerator[Update, None]:
            tickets.append(ticket)
            return complete(ticket)

        engine.replicas.complete = recorded  # type: ignore[method-assign]
        old = []
        hold.touch()
        for i, text in enumerate(PROMPTS):
            stream = engine.generate(engine.tokenizer.encode(text), asked(i, 300))
            old.append(asyncio.create_task(text_of(stream)))
            while not stream.ids:  # so that the next one goes to another replica
                await asyncio.sleep(0.01)
        old_ids = replica_ids()
        replaced = Deployed(str(other), 3, None, {"threads": 1, "sequences": 8, "hold": hold}).application()
        updating = asyncio.create_task(asyncio.to_thread(serve.run, replaced, name=NAME, route_prefix=None))
        while "STOPPING" not in await asyncio.to_thread(states):
            await asyncio.sleep(0.05)
        kill(old_ids[0])
        hold.unlink()
        texts = await asyncio.gather(*old)
        await updating
        streams = [engine.generate(engine.tokenizer.encode(text), asked(i, 50)) for i, text in enumerate(PROMPTS)]
        return texts, await asyncio.gather(*map(text_of, streams))

    with engines(TINY_GGUF, 3, sequences=8, hold=hold) as engine:
        weights = engine.identity.weights
        before, after = asyncio.run(ask())
        assert engine.identity.weights != weights
    assert before == expected
    assert any(ticket.completed for ticket in tickets), "no stream was cut"
    assert after == alone(other, 50) != alone(TINY_GGUF, 50)


@pytest.mark.slow
def test_streams_move_with_their_state(hold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer replicas are wanted while streams go on."""
    monkeypatch.setattr("trigraph.runtime.server.cluster.deployment.EngineReplica", GivingReplica)
    expected, tickets = alone(TINY_GGUF, 1200), list[Ticket]()

    async def ask() -> list[str]:
        complete = engine.replicas.complete

        def recorded(ticket: Ticket) -> AsyncGenerator[Update, None]:
            tickets.append(ticket)
            return complete(ticket)

        engine.replicas.complete = recorded  # type: ignore[method-assign]
        texts = []
        for i, text in enumerate(PROMPTS):
            stream = engine.generate(engine.tokenizer.encode(text), asked(i, 1200))
            texts.append(asyncio.create_task(text_of(stream)))
            while not stream.ids:  # so that the next one goes to another replica
                await asyncio.sleep(0.01)
        fewer = Deployed(str(TINY_GGUF), 1, None, {"threads": 1, "sequences": 8, "hold": hold}).application()
        await asyncio.to_thread(serve.run, fewer, name=NAME, route_prefix=None)
        return await asyncio.gather(*texts)

    with engines(TINY_GGUF, 2, sequences=8, hold=hold) as engine:
        assert asyncio.run(ask()) == expected
    moved = [ticket for ticket in tickets if ticket.completed]
    assert moved and all(ticket.state is not None for ticket in moved)
    # A stream that lasts moves again, as the second replica is replaced, too; never back to one that it has left.
    assert all(1 <= len({*ticket.lost}) == len(ticket.lost) for ticket in moved)


@pytest.mark.slow
def test_replicas_gone_for_good_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's file is renamed, and the replica killed: none can start again."""
    model = tmp_path / "model.gguf"
    shutil.copy(TINY_GGUF, model)
    monkeypatch.setattr("trigraph.runtime.server.cluster.replicas.OUTAGE_SECONDS", 3.0)

    async def ask() -> None:
        stream = engine.generate(engine.tokenizer.encode(PROMPTS[0]), asked(0, 3000))
        text = asyncio.create_task(text_of(stream))
        while not stream.ids:
            await asyncio.sleep(0.01)
        assert await engine.outage() is None
        model.rename(tmp_path / "renamed.gguf")
        kill(replica_ids()[0])
        for task in (text, text_of(engine.generate([1, 2, 3], asked(1, 9)))):
            with pytest.raises(ApiError, match="no replica of the model runs"):
                await asyncio.wait_for(task, 120)
        assert await engine.outage() == "no replica of the model runs"

    with engines(model, 1, sequences=8) as engine:
        asyncio.run(ask())


@pytest.mark.slow
def test_replicas_come_while_requests_wait_and_give_their_streams_away_before_they_go(
    hold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas that compute nothing."""
    monkeypatch.setattr("trigraph.runtime.server.cluster.deployment.EngineReplica", PacedReplica)
    monkeypatch.setattr("trigraph.runtime.server.cluster.deployment._SHRINKING_SECONDS", 2.0)
    tickets: list[Ticket] = []

    async def begun(count: int, tokens: int) -> list[asyncio.Task[str]]:
        tasks = []
        streams.clear()
        for i in range(count):
            stream = engine.generate([100 + i, 101, 102], asked(i, tokens))
            streams.append(stream)
            tasks.append(asyncio.create_task(text_of(stream)))
            if i < 2:
                while not stream.ids:
                    await asyncio.sleep(0.01)
        return tasks

    async def two_run() -> bool:
        return "'RUNNING': 2" in str(await asyncio.to_thread(states))

    async def grown() -> None:
        hold.touch()
        tasks = await begun(8, 30)
        while not await two_run():
            await asyncio.sleep(0.1)
        assert not any(stream.done for stream in streams)
        hold.unlink()
        await asyncio.gather(*tasks)

    async def ask() -> None:
        complete = engine.replicas.complete

        def recorded(ticket: Ticket) -> AsyncGenerator[Update, None]:
            tickets.append(ticket)
            return complete(ticket)

        engine.replicas.complete = recorded  # type: ignore[method-assign]
        async with asyncio.timeout(600):
            while not any(ticket.completed for ticket in tickets):
                if not await two_run():  # the one that went had no stream
                    await grown()
                tickets.clear()
                await asyncio.gather(*await begun(2, 600))
        expected = [([100 + i, 101, 102] * 200)[:600] for i in range(2)]
        assert [stream.ids for stream in streams] == expected

    streams: list[Handle] = []
    with engines(TINY_GGUF, 1, 2, sequences=2, seconds=0.05, hold=hold) as engine:
        asyncio.run(ask())
        await_replicas(1)
    moved = [ticket for ticket in tickets if ticket.completed]
    assert moved and all(len(ticket.lost) == 1 for ticket in moved)
