"""The replicas of a Ray Serve deployment, as a front sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from trigraph.runtime.scheduler.waiting import QueueFullError
from trigraph.runtime.server.cluster.remote_engine import ReplicaLostError
from trigraph.runtime.server.cluster.replica import Description, Ticket, Update
from trigraph.runtime.server.errors import ApiError

SILENCE_SECONDS = 30.0
"""After which a silent replica counts as lost: no connection ends when a machine loses its power."""
OUTAGE_SECONDS = 60.0
"""For which requests wait while no replica runs: about as long as another one takes to start."""
_CHECK_SECONDS = 5.0
_ANSWER_SECONDS = 0.25  # that a stream is held back for a replica's answer
_STATUS_SECONDS = 2.0  # for which what Ray's controller said holds
_MOST_COPIES = 2


class RayReplicas:
    """Sends tickets to the replicas of `handle`, in one event loop."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self.handle = handle
        # Updates come over gRPC: as objects of Ray's store each would cost a front twice the time. But a replica takes
        # no message of more than 4 MB, as state and pixels are.
        self._stream = handle.options(stream=True, _by_reference=False).stream
        self._large = handle.options(stream=True, _by_reference=True).stream
        self._controller = ThreadPoolExecutor(1, "ray-status")
        self._status: Future[bool | None] | None = None
        self._asked = 0.0
        self._down_since: float | None = None

    async def complete(self, ticket: Ticket) -> AsyncGenerator[Update, None]:
        """Yields the rest of a completion as a replica computes it.

        Raises ReplicaLostError when the replica is lost, ApiError when none has run for OUTAGE_SECONDS, and what
        the replica raises.
        """
        replica, updates = None, None
        offer, successor = None, None  # of a replica that is to end; the stream goes on there while another one starts
        try:
            replica, updates = await self._accepted(ticket)
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    update = await anext(updates)
                if update is not None:
                    yield update._replace(offer=None)
                    if update.finish_reason is not None:
                        _cancel(successor)
                        successor = None
                    elif update.offer is not None and not update.offer.ends:
                        if await self._goes_on(update.fingerprint, _ANSWER_SECONDS, roomy=True):
                            raise ReplicaLostError("it has no room", replica, update.offer)
                    elif update.offer is not None and successor is None:
                        offer, successor = update.offer, asyncio.create_task(self._successor(update.fingerprint))
                        await asyncio.wait((successor,), timeout=_ANSWER_SECONDS)
                if successor is not None and successor.done():
                    raise ReplicaLostError("it is to end", replica, offer)
        except StopAsyncIteration:
            return
        except ReplicaLostError:
            raise
        except TimeoutError as error:
            raise ReplicaLostError(f"no sign of life for {SILENCE_SECONDS:.0f} s", replica) from error
        except Exception as error:
            raise _explained(error, replica) from error
        finally:
            _cancel(successor)
            if updates is not None:
                updates.cancel()

    async def _accepted(self, ticket: Ticket) -> tuple[str, Any]:
        """Sends a ticket until a replica has taken it; returns the replica's name and the response with its updates.

        A ticket that waits for a replica with room cannot be told from one that was sent to a replica which then fell
        silent. So a second copy goes out after SILENCE_SECONDS, and the first to be taken counts. The oldest copy
        keeps its place in the queue.
        """
        copies: dict[asyncio.Future[str], Any] = {}
        due = 0.0
        try:
            while True:
                if time.monotonic() >= due:
                    if len(copies) == _MOST_COPIES:
                        await _withdraw(copies, [*copies][1:])
                    copy = (self._large if ticket.large else self._stream).remote(ticket)
                    copies[asyncio.ensure_future(anext(copy))] = copy
                    due = time.monotonic() + SILENCE_SECONDS
                wait = min(_CHECK_SECONDS, SILENCE_SECONDS)
                done, _ = await asyncio.wait(copies, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for first in done:
                    name = first.result()
                    return name, copies.pop(first)
                if await self.outage() and time.monotonic() - (self._down_since or time.monotonic()) >= OUTAGE_SECONDS:
                    raise _unavailable()
        finally:
            await _withdraw(copies, [*copies])

    async def outage(self) -> str | None:
        """Why no request can be computed just now, if so."""
        now = time.monotonic()
        if self._status is None or (self._status.done() and now - self._asked >= _STATUS_SECONDS):
            # In a thread of its own: a controller that does not answer must not take those that parse requests.
            self._status, self._asked = self._controller.submit(self._running), now
        answer = asyncio.wrap_future(self._status)
        await asyncio.wait((answer,), timeout=_CHECK_SECONDS)
        running = answer.result() if answer.done() else None
        if running is None:  # replicas answer requests without the controller
            running = await self._identified(_CHECK_SECONDS) is not None or None
        if running:
            self._down_since = None
            return None
        self._down_since = self._down_since or now
        return "the cluster's controller does not answer" if running is None else "no replica of the model runs"

    def _running(self) -> bool | None:
        """Whether a replica runs. None: the controller does not know, as it is not there, or has just started again."""
        try:
            application = serve.status().applications.get(self.handle.app_name)
        except Exception:  # whatever it failed of; those who asked may have left, and nobody would look at it
            return None
        deployment = None if application is None else application.deployments.get(self.handle.deployment_name)
        if deployment is None or "RECOVERING" in deployment.replica_states:
            return None
        return bool(deployment.replica_states.get("RUNNING", 0))

    async def _successor(self, fingerprint: str) -> None:
        """Returns when a replica runs that goes on with what one of that fingerprint has begun: asks some, in turn."""
        while not await self._goes_on(fingerprint, _CHECK_SECONDS, roomy=False):
            await asyncio.sleep(_ANSWER_SECONDS)

    async def _goes_on(self, fingerprint: str, seconds: float, *, roomy: bool) -> bool:
        """Whether some replica that is asked goes on with what one of that fingerprint has begun."""
        return await self._identified(seconds, roomy=roomy) == fingerprint

    async def _identified(self, seconds: float, *, roomy: bool = False) -> str | None:
        """What some replica that is asked says that it is; None where none answers in time."""
        with suppress(TimeoutError, RayError, RayServeException):
            async with asyncio.timeout(seconds):
                return cast(str, await self.handle.identify.remote(roomy))
        return None

    async def describe(self) -> Description:
        """Asks some replica what it runs. Raises ApiError when none answers."""
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                return cast(Description, await self.handle.describe.remote())
        except TimeoutError as error:
            raise _unavailable() from error


def _cancel(task: asyncio.Task[None] | None) -> None:
    """Ends a task, if there is one."""
    if task is not None:
        task.cancel()


async def _withdraw(copies: dict[asyncio.Future[str], Any], which: list[asyncio.Future[str]]) -> None:
    """Cancels some copies of a ticket, and forgets them."""
    for future in which:
        copies.pop(future).cancel()
        future.cancel()
    await asyncio.gather(*which, return_exceptions=True)


def _unavailable() -> ApiError:
    return ApiError("no replica of the model runs; try again later", 503, code="no_replicas")


def _explained(error: Exception, replica: str | None) -> BaseException:
    """What Ray's error means for a ticket."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, RequestCancelledError):
        return asyncio.CancelledError()
    if isinstance(cause, BackPressureError):
        return QueueFullError("too many requests wait already; try again later")
    if isinstance(cause, DeploymentUnavailableError):
        return _unavailable()
    if isinstance(cause, RayServeException) or (isinstance(cause, RayError) and not isinstance(cause, RayTaskError)):
        return ReplicaLostError(str(cause), replica)
    return cause
