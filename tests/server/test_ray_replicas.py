"""What a front does about replicas that are silent, full or gone: a handle of Ray Serve's that a test plays."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from trigraph.runtime import Options

pytest.importorskip("ray", reason="ray is not installed: no replicas (pip install 'ray[serve]')")

from ray import serve
from ray.serve.exceptions import RayServeException

from trigraph.runtime.server.cluster import replicas as module
from trigraph.runtime.server.cluster.remote_engine import ReplicaLostError
from trigraph.runtime.server.cluster.replica import Offer, Ticket, Update
from trigraph.runtime.server.cluster.replicas import RayReplicas
from trigraph.runtime.server.errors import ApiError

TICKET = Ticket([1, 2, 3], Options(), (), [], "weights")
LAST = Update([7], [], [], [], [], 1, 0, 0, 0.0, 0.0, "off", "stop", "fingerprint")
OFFER = LAST._replace(finish_reason=None, offer=Offer(b"state"))
WAITS = OFFER._replace(tokens=[], sampled=0, offer=Offer(None, ends=False))
FOREVER = 3600.0


class Response:
    """The response to one copy of a ticket: `items` are yielded; numbers are seconds to wait, functions what for."""

    def __init__(self, *items: str | Update | float | Exception | Callable[[], bool] | None) -> None:
        self.cancelled = False
        self._items = self._played(items)

    async def _played(self, items: tuple[Any, ...]) -> AsyncGenerator[Any, None]:
        for item in items:
            if isinstance(item, float):
                await asyncio.sleep(item)
            elif callable(item):
                while not item():
                    await asyncio.sleep(0.01)
            elif isinstance(item, Exception):
                raise item
            else:
                yield item

    async def __anext__(self) -> Any:
        return await anext(self._items)

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Answers each copy of a ticket as the next response says."""

    app_name, deployment_name = "application", "engine"

    def __init__(self, *responses: Response, others: Sequence[str | float] = (LAST.fingerprint,)) -> None:
        """`others`: what replicas tell of their fingerprint, or how long they take; the last one again and again."""
        self.responses, self.sent = responses, 0
        self.told = 0
        self.identify = SimpleNamespace(remote=lambda roomy: self._tell(others, roomy))
        self.roomy: set[bool] = set()  # whether they were asked for room

    async def _tell(self, others: Sequence[str | float], roomy: bool) -> str | float:
        self.roomy.add(roomy)
        answer = others[min(self.told, len(others) - 1)]
        self.told += 1
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        return answer

    def options(self, **_: object) -> Any:
        return SimpleNamespace(stream=SimpleNamespace(remote=self._send))

    def _send(self, ticket: Ticket) -> Response:
        self.sent += 1
        return self.responses[self.sent - 1]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many replicas run, as Ray's controller says."""
    states = {"RUNNING": 2}
    deployments = {"engine": SimpleNamespace(replica_states=states)}
    status = SimpleNamespace(applications={"application": SimpleNamespace(deployments=deployments)})
    monkeypatch.setattr(serve, "status", lambda: status)
    for name, seconds in {
        "SILENCE_SECONDS": 0.2,
        "OUTAGE_SECONDS": 60.0,
        "_CHECK_SECONDS": 0.1,
        "_ANSWER_SECONDS": 0.05,
        "_STATUS_SECONDS": 0.0,
    }.items():
        monkeypatch.setattr(module, name, seconds)

    def run(count: int) -> None:
        states.clear()
        states.update({"RUNNING": count} if count else {"STARTING": 1})

    return run


def completed(handle: Handle) -> list[Update]:
    """All updates of a ticket; fails when they do not end."""

    async def ask() -> list[Update]:
        return [update async for update in RayReplicas(handle).complete(TICKET)]

    return asyncio.run(asyncio.wait_for(ask(), 60))


def test_a_ticket_at_a_silent_replica_is_taken_by_another(running: Callable[[int], None]) -> None:
    silent, taken = Response(FOREVER), Response("second", LAST)
    assert completed(Handle(silent, taken)) == [LAST]
    assert silent.cancelled


def test_a_ticket_that_waits_for_room_keeps_its_place(running: Callable[[int], None]) -> None:
    waiting, others = Response(lambda: handle.sent > 2, "first", None, LAST), [Response(FOREVER) for _ in range(20)]
    handle = Handle(waiting, *others)
    assert completed(handle) == [LAST]
    assert all(other.cancelled for other in others[: handle.sent - 1])


def test_a_replica_that_falls_silent_later_is_named(running: Callable[[int], None]) -> None:
    for items in (("first", FOREVER), ("first", None, FOREVER)):
        handle = Handle(Response(*items))
        with pytest.raises(ReplicaLostError) as raised:
            completed(handle)
        assert raised.value.replica == "first"
        assert handle.sent == 1


def test_a_replica_that_is_to_end_is_left_where_others_run(running: Callable[[int], None]) -> None:
    response = Response("first", OFFER, FOREVER)
    with pytest.raises(ReplicaLostError) as raised:
        completed(Handle(response))
    assert (raised.value.replica, raised.value.offer) == ("first", OFFER.offer)
    assert response.cancelled


@pytest.mark.parametrize("others", ["another version", "", FOREVER])
def test_no_other_version_takes_streams_over(running: Callable[[int], None], others: str | float) -> None:
    handle = Handle(Response("first", OFFER, LAST), others=[others])
    assert completed(handle) == [OFFER._replace(offer=None), LAST]


@pytest.mark.parametrize("first", ["", FOREVER])
def test_a_replica_that_is_to_end_is_left_when_another_one_runs(
    running: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, first: str | float
) -> None:
    """The one that is asked first is to end as well, or none answers yet; the stream goes on meanwhile."""
    monkeypatch.setattr(module, "SILENCE_SECONDS", 60.0)  # the replica waits in silence for the second question
    going = OFFER._replace(offer=None)
    response = Response("first", OFFER, going, None, lambda: handle.told > 1, 0.05, going, FOREVER)
    handle = Handle(response, others=[first, LAST.fingerprint])
    updates: list[Update] = []

    async def ask() -> None:
        async for update in RayReplicas(handle).complete(TICKET):
            updates.append(update)

    with pytest.raises(ReplicaLostError) as raised:
        asyncio.run(asyncio.wait_for(ask(), 60))
    assert (raised.value.replica, raised.value.offer) == ("first", OFFER.offer)
    assert updates == [going] * 3 and response.cancelled


def test_a_request_that_waits_goes_where_room_is(running: Callable[[int], None]) -> None:
    response = Response("first", WAITS, WAITS, FOREVER)
    handle = Handle(response, others=["", LAST.fingerprint])
    with pytest.raises(ReplicaLostError) as raised:
        completed(handle)
    assert (raised.value.replica, raised.value.offer) == ("first", WAITS.offer)
    assert response.cancelled and handle.told == 2 and handle.roomy == {True}


@pytest.mark.parametrize("others", ["another version", "", FOREVER])
def test_a_request_waits_on_where_no_room_is(running: Callable[[int], None], others: str | float) -> None:
    handle = Handle(Response("first", WAITS, WAITS, LAST), others=[others])
    assert completed(handle) == [WAITS._replace(offer=None)] * 2 + [LAST]


def test_an_error_of_the_replica_is_the_tickets(running: Callable[[int], None]) -> None:
    with pytest.raises(ValueError, match="bad"):
        completed(Handle(Response(ValueError("bad"))))


def test_without_any_replica_a_request_fails(running: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTAGE_SECONDS", 0.4)
    running(0)
    handle = Handle(*(Response(FOREVER) for _ in range(100)))
    with pytest.raises(ApiError, match="no replica of the model runs") as raised:
        completed(handle)
    assert raised.value.status == 503
    assert all(response.cancelled for response in handle.responses[: handle.sent])


def test_a_replica_that_starts_in_time_takes_the_ticket(running: Callable[[int], None]) -> None:
    running(0)
    assert completed(Handle(Response(0.3, "first", LAST), Response(FOREVER), Response(FOREVER))) == [LAST]


def test_an_outage_is_told_and_ends(running: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECK_SECONDS", 60.0)

    async def ask() -> None:
        replicas = RayReplicas(Handle())
        assert await replicas.outage() is None
        running(0)
        assert await replicas.outage() == "no replica of the model runs"
        running(1)
        assert await replicas.outage() is None

    asyncio.run(ask())


@pytest.mark.parametrize("answer", [RayServeException("the controller is gone"), "nothing", "recovering"])
def test_replicas_that_answer_without_the_controller_are_no_outage(
    answer: Exception | str, running: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray starts a controller that has died again, and requests go on meanwhile."""
    deployment = SimpleNamespace(replica_states={"RECOVERING": 2})
    found = {"application": SimpleNamespace(deployments={"engine": deployment})} if answer == "recovering" else {}

    def status() -> SimpleNamespace:
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(applications=found)

    monkeypatch.setattr(serve, "status", status)
    monkeypatch.setattr(module, "_CHECK_SECONDS", 60.0)
    assert asyncio.run(RayReplicas(Handle(others=[0.01, ""])).outage()) is None
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.1)
    assert asyncio.run(RayReplicas(Handle(others=[FOREVER])).outage()) is not None


def test_a_controller_that_fails_late_is_an_outage(
    running: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it failed of comes when nobody waits for it any more, and is no error of the event loop's."""
    failing, errors = threading.Event(), list[object]()

    def status() -> None:
        failing.wait(60)
        raise RayServeException("the controller is gone")

    monkeypatch.setattr(serve, "status", status)

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        replicas = RayReplicas(Handle(others=[FOREVER]))
        asked = [asyncio.create_task(replicas.outage()) for _ in range(20)]
        assert {await each for each in asked} == {"the cluster's controller does not answer"}
        failing.set()
        assert await replicas.outage() == "the cluster's controller does not answer"
        del replicas, asked
        gc.collect()  # where the loop tells of errors that nobody has looked at

    asyncio.run(ask())
    assert not errors
