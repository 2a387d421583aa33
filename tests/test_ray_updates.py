"""Replicas on Ray Serve that become others, more or fewer while they work."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Options, Sampling, load

pytest.importorskip("ray", reason="ray is not installed: no replicas (pip install 'trigraph[ray]')")

from ray import serve

from support.ray_cluster import engines, kill, replica_ids
from trigraph.runtime.server.ray import NAME, Deployed
from trigraph.runtime.server.remote import RemoteStream
from trigraph.runtime.server.replica import Ticket, Update

PROMPTS = [f"{number} times it was said in the beginning that" for number in range(6)]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The tiny model with a louder last norm: other weights, other probabilities, the same tokenizer."""
    path = tmp_path / "other.gguf"
    shutil.copy(TINY_GGUF, path)
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(path, "r+").tensors}
    np.multiply(tensors["output_norm.weight"], 1.5, out=tensors["output_norm.weight"])
    return path


def states() -> dict[str, int]:
    """How many replicas are in which state."""
    found: dict[str, int] = serve.status().applications[NAME].deployments["engine"].replica_states
    return found


def asked(number: int, tokens: int) -> Options:
    return Options(Sampling(temperature=0.9, seed=number), max_tokens=tokens, ignore_eos=True)


async def text_of(stream: RemoteStream) -> str:
    return "".join([piece async for piece in stream])


def alone(model: Path, tokens: int) -> list[str]:
    """What one engine says."""
    engine = load(model, threads=1)
    requests = [engine.submit(prompt, asked(i, tokens)) for i, prompt in enumerate(PROMPTS)]
    return [request.result() for request in requests]


@pytest.mark.slow
def test_streams_stay_with_the_version_that_began_them(other: Path) -> None:
    """The model is replaced while streams go on, and one of the old replicas is killed."""
    expected, tickets = alone(TINY_GGUF, 3000), list[Ticket]()

    async def ask() -> tuple[list[str], list[str]]:
        complete = engine.replicas.complete

        def recorded(ticket: Ticket) -> AsyncGenerator[Update, None]:
            tickets.append(ticket)
            return complete(ticket)

        engine.replicas.complete = recorded  # type: ignore[method-assign]
        old = []
        for i, text in enumerate(PROMPTS):
            stream = engine.generate(engine.tokenizer.encode(text), asked(i, 3000))
            old.append(asyncio.create_task(text_of(stream)))
            while not stream.ids:  # so that the next one goes to another replica
                await asyncio.sleep(0.01)
        old_ids = replica_ids()
        replaced = Deployed(str(other), 3, None, {"threads": 1, "sequences": 8}).application()
        updating = asyncio.create_task(asyncio.to_thread(serve.run, replaced, name=NAME, route_prefix=None))
        while "STOPPING" not in await asyncio.to_thread(states):
            await asyncio.sleep(0.05)
        kill(old_ids[0])
        texts = await asyncio.gather(*old)
        await updating
        streams = [engine.generate(engine.tokenizer.encode(text), asked(i, 50)) for i, text in enumerate(PROMPTS)]
        return texts, await asyncio.gather(*map(text_of, streams))

    with engines(TINY_GGUF, 3, sequences=8) as engine:
        weights = engine.identity.weights
        before, after = asyncio.run(ask())
        assert engine.identity.weights != weights
    assert before == expected
    assert any(ticket.completed for ticket in tickets), "no stream was cut"
    assert after == alone(other, 50) != alone(TINY_GGUF, 50)
