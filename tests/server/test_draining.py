"""A replica that is to end, and a front that has another one go on."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from support.fakes.engine import TEMPLATE, engine_of
from support.fakes.rounds import LOGITS, options, tokens
from trigraph.runtime import Engine
from trigraph.runtime.execution.prefill_speed import PrefillSpeed
from trigraph.runtime.requests.handle import Handle
from trigraph.runtime.scheduler.scheduler import Scheduler
from trigraph.runtime.server.cluster import replica as replica_module
from trigraph.runtime.server.cluster.remote_engine import RemoteEngine, ReplicaLostError
from trigraph.runtime.server.cluster.replica import Description, Replica, Ticket, Update


class Draining:
    """Two replicas, of which the first drains from a token on.

    Rounds wait for that, and stand still until it has offered its `streams`, before a completion can end.
    """

    def __init__(self, first: Engine, second: Engine, streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drained, self.offers, rounds, run = threading.Event(), 0, itertools.count(), Scheduler.round

        def held(scheduler: Scheduler) -> bool:
            if next(rounds) > 5:
                self.drained.wait(60)
                if self.offers < streams:
                    time.sleep(0.001)
                    return True
            return run(scheduler)

        monkeypatch.setattr(Scheduler, "round", held)
        self.replicas = [Replica(first), Replica(second)]
        self.tickets: list[Ticket] = []

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        self.tickets.append(pickle.loads(pickle.dumps(ticket)))
        replica = self.replicas[bool(ticket.lost)]
        async for update in replica.complete(self.tickets[-1]):
            yield update
            self.offers += update.offer is not None
            if update.offer is not None and update.finish_reason is None:
                raise ReplicaLostError("it is to end", "first", update.offer)
            if replica is self.replicas[0]:
                replica.drain()
                self.drained.set()

    async def describe(self) -> Description:
        return self.replicas[0].describe()

    async def outage(self) -> str | None:
        return None


@pytest.mark.parametrize("slow", [True, False])
def test_a_replica_that_drains_gives_its_streams_away(monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    """With their state where computing it again is slow."""
    monkeypatch.setattr("trigraph.runtime.server.cluster.replica._GAP", 0.0)
    monkeypatch.setattr(PrefillSpeed, "seconds", lambda _, tokens: 1e9 if slow else 0.0)
    option = options(seed=3, max_tokens=150)
    whole = engine_of(LOGITS, context=200, template=TEMPLATE)[0].generate(tokens(20), option)
    text = whole.run()
    (first, model), (second, other) = (engine_of(LOGITS, context=200, template=TEMPLATE) for _ in range(2))
    other._histories, other._numbers = model._histories, model._numbers  # what its states hold
    replicas = Draining(first, second, 1, monkeypatch)
    engine = RemoteEngine(replicas.replicas[0].describe(), replicas, 8)
    stream = engine.generate(tokens(20), option)
    assert asyncio.run(stream._whole()) == text
    assert [ticket.lost for ticket in replicas.tickets] == [(), ("first",)]
    assert (replicas.tickets[1].state is not None) == slow
    prefilled = sum(sum(lengths) for graph, lengths in other.runs if graph == "prefill")
    told = len(replicas.tickets[1].completed)
    assert prefilled < told if slow else prefilled == 20 + told - 1, "the prompt was computed again"
    assert stream.ids == whole.ids and not first.load.running
    assert not replicas.replicas[0]._requests


def test_those_that_wait_go_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they have begun."""
    first, second = (engine_of(LOGITS, context=200, sequences=1, template=TEMPLATE)[0] for _ in range(2))
    replicas = Draining(first, second, 3, monkeypatch)
    engine = RemoteEngine(replicas.replicas[0].describe(), replicas, 8)
    streams = [engine.generate(tokens(20, seed), options(seed=seed, max_tokens=150)) for seed in range(3)]

    async def all_of_them() -> None:
        await asyncio.gather(*[stream._whole() for stream in streams])

    asyncio.run(all_of_them())
    alone = engine_of(LOGITS, context=200, template=TEMPLATE)[0]
    for seed, stream in enumerate(streams):
        whole = alone.generate(tokens(20, seed), options(seed=seed, max_tokens=150))
        assert whole.run() == stream.text
    assert sorted(ticket.lost for ticket in replicas.tickets) == [()] * 3 + [("first",)] * 3
    assert any(not ticket.completed for ticket in replicas.tickets if ticket.lost)


def test_a_request_that_waits_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that is computed, nor one that a replica has given away; and it begins here when none takes it."""
    monkeypatch.setattr("trigraph.runtime.server.cluster.replica._OFFER_SECONDS", 60.0)
    may_end, rounds, run = threading.Event(), itertools.count(), Scheduler.round
    asked, waits = list[tuple[str, ...]](), replica_module._waits

    def counted(request: Handle, ticket: Ticket) -> bool:
        asked.append(ticket.lost)
        return waits(request, ticket)

    monkeypatch.setattr(replica_module, "_waits", counted)

    def held(scheduler: Scheduler) -> bool:
        if next(rounds) > 5:
            may_end.wait(60)
        return run(scheduler)

    monkeypatch.setattr(Scheduler, "round", held)
    replica = Replica(engine_of(LOGITS, context=200, sequences=1, template=TEMPLATE)[0])
    weights = replica.describe().identity.weights
    tickets = [Ticket(tokens(20, seed), options(seed=seed, max_tokens=150), (), [], weights) for seed in (1, 2)]
    tickets.append(replace(tickets[1], lost=("other",)))

    async def ask() -> list[list[Update]]:
        assert replica.identify(roomy=True) == replica.fingerprint
        first, second, given = (replica.complete(ticket) for ticket in tickets)
        before = [await anext(first)]
        monkeypatch.setattr("trigraph.runtime.server.cluster.replica._OFFER_SECONDS", 0.01)
        assert (replica.identify(roomy=True), replica.identify()) == ("", replica.fingerprint)
        offers, silent = [await anext(second), await anext(second)], asyncio.ensure_future(anext(given))
        while asked.count(("other",)) < 3 and not silent.done():
            offers.append(await anext(second))
            assert len(offers) < 3000
        may_end.set()
        updates = [before + [update async for update in first], offers + [update async for update in second]]
        return [*updates, [await silent] + [update async for update in given]]

    first, second, given = asyncio.run(ask())
    assert all(update.offer is None for update in first + given)
    offers = [update.offer for update in second if update.offer is not None]
    assert len(offers) >= 2 and {(offer.state, offer.ends) for offer in offers} == {(None, False)}
    alone = engine_of(LOGITS, context=200, template=TEMPLATE)[0]
    for ticket, updates in zip(tickets, (first, second, given), strict=True):
        whole = alone.generate(ticket.prompt, ticket.options)
        whole.run()
        assert [token for update in updates for token in update.tokens] == whole.ids
