"""Replicas of an engine in this process that do not live long."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from trigraph.runtime import Engine
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine, ReplicaLostError
from trigraph.runtime.server.cluster.replica import Description, Replica, Ticket, Update


class DyingReplicas:
    """Replicas of one engine, each of which is lost once it has told at least three tokens."""

    def __init__(self, engine: Engine) -> None:
        self.losses = 0
        self._replica = Replica(engine)

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        told = 0
        async for update in self._replica.complete(ticket):
            yield update
            told += len(update.tokens)
            if told >= 3 and update.finish_reason is None:
                self.losses += 1
                raise ReplicaLostError

    async def describe(self) -> Description:
        return self._replica.describe()

    async def outage(self) -> str | None:
        return None

    def front(self) -> RemoteEngine:
        """A front of them."""
        return RemoteEngine(self._replica.describe(), self, 64)
