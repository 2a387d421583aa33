"""Prompts with images at replicas on Ray Serve: the pixels arrive, and where a replica has them, their digest does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.models.seeing import SeeingPackages, picture, prompt_of
from trigraph.runtime import Options, Sampling, load

pytest.importorskip("ray", reason="ray is not installed: no replicas (pip install 'ray[serve]')")

from support.servers.ray_cluster import engines
from trigraph.runtime.server.cluster.replica import Ticket, Update

GREEDY = Options(Sampling(temperature=0), max_tokens=12, ignore_eos=True)


def test_images_at_replicas(seeing: SeeingPackages, monkeypatch: pytest.MonkeyPatch) -> None:
    package = seeing("tiny-moe", "Q8_0")
    prompts = [prompt_of(40, picture((8, 9), seed), 5) for seed in range(2)]
    with load(package, threads=1, context=512) as local:
        expected = [local.generate(prompt, GREEDY).run() for prompt in prompts]
    assert expected[0] != expected[1]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    sent: list[int] = []
    with engines(package, 2, sequences=2, context=512) as front:
        complete = front.replicas.complete

        def recorded(ticket: Ticket) -> AsyncGenerator[Update, None]:
            assert ticket.images is not None
            sent.append(len(ticket.images.pixels))
            return complete(ticket)

        monkeypatch.setattr(front.replicas, "complete", recorded)

        async def text_of(number: int) -> str:
            return "".join([piece async for piece in front.generate(prompts[number], GREEDY)])

        async def ask() -> None:
            for number in (0, 0, 1, 1):
                assert await text_of(number) == expected[number]
            assert sent == [1, 0, 1, 0]
            # More than one replica takes: the other one asks for the pixels.
            texts = await asyncio.gather(*[text_of(number % 2) for number in range(24)])
            assert texts == [expected[number % 2] for number in range(24)]
            assert sum(sent[4:]) > 0

        asyncio.run(ask())
