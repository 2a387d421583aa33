"""Listens, serves until told to stop, and lets requests end then."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import sys
import time
from http import HTTPStatus
from types import FrameType
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.heap import trim_heap
from trigraph.runtime.server.app import App
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.routes import routes
from trigraph.runtime.server.security import MAX_HEAD_BYTES
from trigraph.runtime.server.settings import Settings

_KEEP_ALIVE_SECONDS = 65  # longer than clients keep a connection, so that they close it
_LARGE = 1 << 20  # bytes of an answer that may wait for long; streams have far fewer
_MOST_UNREAD = 1 << 30  # bytes of all such answers
_LAST_SECONDS = 2  # for connections, once no request is answered any more


def bind(settings: Settings) -> socket.socket:
    """The socket to listen on. Raises TrigraphError when the address cannot be used."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named, for asyncio to send small packets at once.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # where it would let two servers share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise TrigraphError(
            f"cannot listen on {settings.host} port {settings.port} ({reason}); choose another --host or --port"
        ) from error
    return listener


def serve(app: App, listener: socket.socket) -> None:
    """Serves until SIGTERM or Ctrl-C; a second one ends it at once."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("trigraph.server").setLevel(logging.INFO if app.settings.verbose else logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of each malformed request
    trim_heap()
    Server(app).run(sockets=[listener])


def _configuration(app: App) -> uvicorn.Config:
    settings = app.settings
    seconds = {"head_seconds": settings.read_seconds, "unread_seconds": settings.write_seconds}
    protocol = type("Protocol", (_Protocol,), {**seconds, "large_answers": {}})
    return uvicorn.Config(
        routes(app),
        loop="asyncio",  # whatever else is installed
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_LAST_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )


class Server(uvicorn.Server):
    """Goes on after the first signal until all requests are answered, or their time is over."""

    def __init__(self, app: App) -> None:
        super().__init__(_configuration(app))
        self._app = app
        self._deadline = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles a signal that ends the server."""
        if self._app.draining:
            self.should_exit = self.force_exit = True
        self._app.draining = True
        # It would show a traceback for each request that is cut off.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._deadline = time.monotonic() + self._app.settings.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """Runs ten times a second; true when the server is to end."""
        if self._app.draining and (not self._app.running or time.monotonic() > self._deadline):
            self.should_exit = True
        await self._app.tick()
        return await super().on_tick(counter)


class _Protocol(H11Protocol):
    """Closes connections when the head of a request, or the rest of one that is answered, does not come in time.

    And those whose clients read nothing for long, or the slowest where all have too much to read: what waits for them
    takes memory.
    """

    head_seconds = 30.0
    unread_seconds = 60.0
    large_answers: ClassVar[dict[_Protocol, None]] = {}
    """The connections with much to read, those first that began first."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes in a new connection."""
        super().connection_made(transport)
        self._watch(waiting=True)

    def data_received(self, data: bytes) -> None:
        """Takes in bytes of a request."""
        super().data_received(data)
        head = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        self._watch(waiting=head or (self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE))

    def send_400_response(self, msg: str) -> None:
        """Answers a malformed request with an error of ours, and closes its connection."""
        status, message = 400, "malformed HTTP request"
        if len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES:
            status, message = 431, f"the request's headers have more than {MAX_HEAD_BYTES:,} bytes; send fewer"
        body = json.dumps(ApiError(message, status).body("")).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        head = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)
        self.transport.write(
            b"".join(self.conn.send(e) or b"" for e in (head, h11.Data(data=body), h11.EndOfMessage()))
        )
        self.transport.close()

    def pause_writing(self) -> None:
        """Takes note that more has been written than is sent."""
        super().pause_writing()
        self._watch_reader()
        if self.transport.get_write_buffer_size() > _LARGE:
            self.large_answers[self] = None
            self._end_slowest()

    def resume_writing(self) -> None:
        """Takes note that the client has read on."""
        super().resume_writing()
        self._forget_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._watch(waiting=False)
        self._forget_reader()
        super().connection_lost(exc)

    def _watch_reader(self, unread: float = math.inf) -> None:
        """Ends the connection if the client has read none of what was unread, and else looks again later."""
        left = self.transport.get_write_buffer_size()
        if left >= unread:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(self.unread_seconds, self._watch_reader, left)

    def _end_slowest(self) -> None:
        """Ends connections while all have more to read than there may be, but for the last one."""
        left = sum(protocol.transport.get_write_buffer_size() for protocol in self.large_answers)
        for slowest in [*self.large_answers][:-1]:
            if left <= _MOST_UNREAD:
                break
            left -= slowest.transport.get_write_buffer_size()
            slowest.transport.abort()

    def _forget_reader(self) -> None:
        self.large_answers.pop(self, None)
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self, *, waiting: bool) -> None:
        """Starts or stops the time for what a client has yet to send."""
        if not waiting and self._late is not None:
            self._late.cancel()
            self._late = None
        elif waiting and self._late is None:
            self._late = self.loop.call_later(self.head_seconds, self.transport.close)
