"""Answers a request over HTTP: its body in, a response or a stream of events out, an end when the client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import ExitStack, aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from trigraph.models.errors import quote
from trigraph.runtime.server.app import App, ServedModel
from trigraph.runtime.server.errors import ApiError, explained
from trigraph.runtime.server.heartbeat import alive
from trigraph.runtime.server.job import Job
from trigraph.runtime.server.json_pieces import json_bytes
from trigraph.runtime.server.security import MOST_DISCARDED, discard
from trigraph.runtime.server.threads import in_thread

_T = TypeVar("_T")

_KEEP_ALIVE_SECONDS = 15.0  # proxies and clients give up on a connection that is silent for long
_COMMENT = b": waiting\n\n"
_CLIENT_GONE = 499
_JSON = "application/json"
_WARNINGS = "X-Trigraph-Warnings"  # a JSON list of sentences
_LONGEST_WARNINGS = 6000  # clients take headers of 8 KB


async def answer(app: App, request: HttpRequest, make: Callable[[ServedModel, bytes], Job]) -> Response:
    """The response to a request. `make` reads its body, in a thread: parsing, templates and tokenising take long."""
    with ExitStack() as held:
        held.enter_context(app.answering())
        try:
            job = await _made(app, held, request, make)
            await job.begin()
            warnings = job.warnings()
            headers = {_WARNINGS: _header(warnings)} if warnings else {}
            if job.stream:
                return EventStream(app, job, headers, held.pop_all())
            result = await while_connected(request.receive, job.result())
            job.log(request.url.path)
            if result is None:
                return Response(status_code=_CLIENT_GONE)
            if warnings and isinstance(result, dict):  # several prompts of `/completion` are answered by a list
                result = {**result, "warnings": warnings}
            return Response(await in_thread(json_bytes, result), headers=headers, media_type=_JSON)
        except Exception as error:
            raise explained(error) from error


def _header(sentences: list[str]) -> str:
    """As many of the sentences as a header holds."""
    while len(text := json.dumps(sentences)) > _LONGEST_WARNINGS:
        sentences = sentences[:-1]
    return text


async def look_up(app: App, request: HttpRequest, function: Callable[[ServedModel, bytes], dict[str, Any]]) -> Response:
    """The response of a function of the request's body, which runs in a thread."""
    with ExitStack() as held:
        try:
            body = await _made(app, held, request, lambda model, body: json_bytes(function(model, body)))
            return Response(body, media_type=_JSON)
        except Exception as error:
            raise explained(error) from error


async def _made(app: App, held: ExitStack, request: HttpRequest, make: Callable[[ServedModel, bytes], _T]) -> _T:
    """What `make` makes of a request's body, in a thread. The model that it names stays until `held` is closed."""
    body = bytearray()
    try:
        await read_body(request, app, body)
        content = bytes(body)
        model = await app.named_in(content)
        held.callback(app.left, model)
        return await in_thread(make, model, content)
    finally:
        app.release(len(body))


async def read_body(request: HttpRequest, app: App, body: bytearray) -> None:
    """Reads the body into `body`. Raises ApiError when it is too large, takes too long, or too much is held already."""
    if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        await discard(request.receive)
        raise ApiError(
            f"Content-Encoding is {quote(encoding)}; send the body as it is", 415, code="unsupported_encoding"
        )
    limit = app.settings.max_body
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
        async with asyncio.timeout(app.settings.read_seconds):
            async for piece in request.stream():  # to its end, within reason: a client reads its answer after that
                size += len(piece)
                if max(size, announced) <= limit:
                    app.hold(len(piece))
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

    def __init__(self, app: App, job: Job, headers: Mapping[str, str], held: ExitStack) -> None:
        """`held`: what is to be closed behind the last event."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._app, self._job, self._held = app, job, held

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
            self._held.close()

    async def _send(self, send: Send) -> None:
        async def put(message: Message) -> None:
            async with asyncio.timeout(self._app.settings.write_seconds):
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
