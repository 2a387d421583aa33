"""A front's stream goes at its end: nothing of it waits for the collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator

import pytest

from support.fakes.engine import TEMPLATE, engine_of
from support.fakes.rounds import LOGITS, options, tokens
from trigraph.models.errors import TrigraphError
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine
from trigraph.runtime.server.cluster.replica import Description, Replica, Ticket, Update


class Alone:
    """One replica, in this process, which may fail what it is asked for."""

    def __init__(self, *, fails: bool) -> None:
        self.replica, self.fails = Replica(engine_of(LOGITS, template=TEMPLATE)[0]), fails

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        async for update in self.replica.complete(ticket):
            yield update
            if self.fails:
                raise TrigraphError("it fails")

    async def describe(self) -> Description:
        return self.replica.describe()

    async def outage(self) -> str | None:
        return None


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_that_has_ended_goes_with_its_last_reader(fails: bool) -> None:
    async def read() -> weakref.ref[object]:
        replicas = Alone(fails=fails)
        handle = RemoteEngine(await replicas.describe(), replicas, 8).generate(tokens(9), options())
        if fails:
            with pytest.raises(TrigraphError, match="it fails"):
                await handle
        else:
            await handle
        await asyncio.sleep(0)  # the task that asks replicas ends
        return weakref.ref(handle)

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(read())() is None
    finally:
        gc.enable()
