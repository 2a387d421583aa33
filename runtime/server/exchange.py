"""One exchange with a client: its request's body in, a response or a stream of events out, an end when it goes away."""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from trigraph.models.errors import quote
from trigraph.runtime.images.prompt import spelt
from trigraph.runtime.scheduler.waiting import QueueFullError
from trigraph.runtime.server.errors import ApiError, explained, log
from trigraph.runtime.server.generation import Generation
from trigraph.runtime.server.heartbeat import alive
from trigraph.runtime.server.security import MOST_DISCARDED, discard
from trigraph.runtime.server.service import Served, Service
from trigraph.runtime.server.threads import in_thread

_T = TypeVar("_T")

_KEEP_ALIVE_SECONDS = 15.0  # proxies and clients give up on a connection that is silent for long
_COMMENT = b": waiting\n\n"
_CLIENT_GONE = 499
_WARNINGS = "X-Trigraph-Warnings"  # a JSON list of sentences


class Job(ABC):
    """What a client has asked for: the generations, and how its API writes them."""

    generations: Sequence[Generation]
    stream: bool
    ignored: Sequence[str] = ()
    """Sentences about what of the request the model is not told of."""

    @abstractmethod
    async def result(self) -> Any:
        """The whole answer."""

    @abstractmethod
    def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, each whole."""

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """The event that ends a stream which has failed."""

    async def begin(self, service: Service, generations: Sequence[Generation] | None = None) -> None:
        """Queues generations: all, unless some are given. Raises QueueFullError, and then none of them is queued."""
        begun: list[Generation] = []
        try:
            for generation in self.generations if generations is None else generations:
                generation.metrics = service.metrics
                generation.request.begin()
                begun.append(generation)
                if service.settings.log_prompts:
                    log.info("%s", spelt(service.engine.tokenizer, generation.request.prompt))
        except QueueFullError:
            self.cancel()
            for generation in begun:  # the next round takes them out, and somebody has to ask for one
                async for _ in generation.run():
                    pass
            raise

    def cancel(self) -> None:
        """Ends all generations before the next round."""
        for generation in self.generations:
            generation.cancel()

    def warnings(self) -> list[str]:
        """What of the request is ignored, and what of its schemas the answer is not held to; at most 20."""
        constraint = self.generations[0].request.options.constraint if self.generations else None
        return [*self.ignored, *map(str, () if constraint is None else constraint.notes)][:20]

    def log(self, path: str) -> None:
        """Says in the log what it has cost."""
        for generation in self.generations if log.isEnabledFor(logging.INFO) else ():
            log.info("%s: %s", path, generation.request.stats.line())


async def answer(served: Served, request: HttpRequest, make: Callable[[Service, bytes], Job]) -> Response:
    """The response to a request. `make` reads its body, in a thread: parsing, templates and tokenising take long."""
    if served.draining:
        raise ApiError("the server is about to end; try another one", 503, code="draining")
    served.running += 1
    use = Use(served)
    try:
        job = await _made(use, request, make)
        await job.begin(use.service)
        warnings = job.warnings()
        headers = {_WARNINGS: json.dumps(warnings)} if warnings else {}
        if job.stream:
            served.running += 1
            return EventStream(use.handed_on(), job, headers)
        result = await while_connected(request.receive, job.result())
        job.log(request.url.path)
        if result is None:
            return Response(status_code=_CLIENT_GONE)
        if warnings and isinstance(result, dict):  # several prompts of `/completion` are answered by a list
            result = {**result, "warnings": warnings}
        return JSONResponse(result, headers=headers)
    except Exception as error:
        raise explained(error) from error
    finally:
        use.end()
        served.running -= 1


async def look_up(
    served: Served, request: HttpRequest, function: Callable[[Service, bytes], dict[str, Any]]
) -> Response:
    """The response of a function of the request's body, which runs in a thread."""
    use = Use(served)
    try:
        return JSONResponse(await _made(use, request, function))
    except Exception as error:
        raise explained(error) from error
    finally:
        use.end()


class Use:
    """A request's hold on the model that it names, which stays loaded until the end of it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._service: Service | None = None

    @property
    def service(self) -> Service:
        """The model's service, once it is `begun`."""
        if self._service is None:
            raise RuntimeError("no model was chosen yet")
        return self._service

    async def begin(self, body: bytes) -> Service:
        """Takes the model that the body names."""
        self._service = await self.served.of(body)
        return self._service

    def handed_on(self) -> Use:
        """The same for somebody else to end, in place of this one."""
        other, self._service, service = Use(self.served), None, self._service
        other._service = service
        return other

    def end(self) -> None:
        """Lets it go."""
        if self._service is not None:
            self.served.left(self._service)
            self._service = None


async def _made(use: Use, request: HttpRequest, make: Callable[[Service, bytes], _T]) -> _T:
    """What `make` makes of a request's body, in a thread."""
    body = bytearray()
    try:
        await read_body(request, use.served, body)
        content = bytes(body)
        return await in_thread(make, await use.begin(content), content)
    finally:
        use.served.release(len(body))


async def read_body(request: HttpRequest, service: Served, body: bytearray) -> None:
    """Reads the body into `body`. Raises ApiError when it is too large, takes too long, or too much is held already."""
    if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        await discard(request.receive)
        raise ApiError(
            f"Content-Encoding is {quote(encoding)}; send the body as it is", 415, code="unsupported_encoding"
        )
    limit = service.settings.max_body
    announced = size = 0
    with suppress(ValueError):
        announced = int(request.headers.get("content-length", 0))
    too_large = ApiError(
        f"the body has {max(announced, limit + 1):,} bytes{' or more' * (announced <= limit)}, more than the limit of "
        f"{limit:,}; make images smaller, or leave some out",
        413,
        code="too_large",
    )
    if announced > limit and "expect" in request.headers:  # nothing has been sent yet
        raise too_large
    try:
        async with asyncio.timeout(service.settings.read_seconds):
            async for piece in request.stream():  # to its end, within reason: a client reads its answer after that
                size += len(piece)
                if max(size, announced) <= limit:
                    service.hold(len(piece))
                    body += piece
                elif size > limit + MOST_DISCARDED:
                    break
        if size > limit:
            raise too_large
    except TimeoutError as error:
        raise ApiError("the body did not come in time; send it faster", 408, code="timeout") from error
    except ClientDisconnect as error:
        raise ApiError("the client has gone away", _CLIENT_GONE) from error


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T | None:
    """Does the work, unless the client goes away before it is done: then the work is cancelled, and None returned."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, gone):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends a job's events as they come. A client that goes away or reads nothing for long ends the job."""

    media_type = "text/event-stream"

    def __init__(self, use: Use, job: Job, headers: Mapping[str, str]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._use = use
        self._served = use.served
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until the client leaves."""
        try:
            await while_connected(receive, self._send(send))
        except (OSError, TimeoutError):  # gone, or asleep
            pass
        finally:
            for generation in self._job.generations:
                generation.close()
            self._job.log(scope["path"])
            self._use.end()
            self._served.running -= 1

    async def _send(self, send: Send) -> None:
        async def put(message: Message) -> None:
            async with asyncio.timeout(self._served.settings.write_seconds):
                await send(message)

        await put({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(alive(self._events(), _KEEP_ALIVE_SECONDS, _COMMENT)) as events:
            async for event in events:
                await put({"type": "http.response.body", "body": event, "more_body": True})
        await put({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            async for event in self._job.events():
                yield event
        except Exception as error:
            yield self._job.failed(explained(error))


def sent_event(data: dict[str, Any], name: str | None = None) -> bytes:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
