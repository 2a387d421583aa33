"""What a replica tells a front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from support.fakes.rounds import fresh, options, tokens
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.server.cluster.replica import Replica, Ticket, Update


class MidRound:
    """A request that is looked at in the midst of a round, which has recorded more than it has told, and at the end."""

    def __init__(self, whole: Handle) -> None:
        self.done = False
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    @property
    def ids(self) -> list[int]:
        return self._whole.ids if self.done else self._whole.ids[:4]

    async def news(self) -> AsyncGenerator[None, None]:
        yield
        self.done = True
        yield


def test_an_update_records_its_own_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is lost after it has told of four tokens leaves the records of four."""
    engine, _ = fresh()
    whole = engine.generate(tokens(9), options(logprobs=1))
    whole.run()
    monkeypatch.setattr(engine, "generate", lambda *asked, **others: MidRound(whole))

    async def ask() -> list[Update]:
        ticket = Ticket(tokens(9), options(), (), [], engine.identity.weights)
        return [update async for update in Replica(engine).complete(ticket)]

    first, last = asyncio.run(ask())
    assert first.logprobs == whole.logprobs[:4] and last.logprobs == whole.logprobs[4:]
