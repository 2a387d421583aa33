"""HTTP to a server that may send anything, at any pace: bytes, lines and seconds are bounded.

An audit posts JSON and reads lines, from a few dozen threads: the standard library does that, so it needs no package.
"""

from __future__ import annotations

import io
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from trigraph.models.errors import quote

_PIECE = 1 << 16
_LEAST_SECONDS = 0.01


class ServerError(Exception):
    """A server did not answer a request. `what` is equal for equal reasons; `status` is None without a response."""

    def __init__(self, what: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.what, self.status = what, status

    @property
    def refused(self) -> bool:
        """Whether the server says that the request is wrong, too long for instance."""
        return self.status in (400, 404, 413, 422, 501)


@dataclass(frozen=True)
class Bounds:
    """What one answer may take."""

    seconds: float
    bytes: int
    lines: int


class _Timed(io.RawIOBase):
    """A socket's file, all of whose reads share one timeout. The socket's own is for each read alone, so that a server
    which sends a byte now and then would never be too slow.
    """

    def __init__(self, sock: Any, file: io.RawIOBase) -> None:
        self._socket, self._file = sock, file
        self._end = time.monotonic() + sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp: Any = io.BufferedReader(_Timed(sock, self.fp.detach()))


class _Connection(HTTPConnection):
    response_class = _Response


class _SecureConnection(HTTPSConnection):
    response_class = _Response


class _Http(HTTPHandler):
    def http_open(self, request: Request) -> Any:
        return self.do_open(_Connection, request)


class _Https(HTTPSHandler):
    def https_open(self, request: Request) -> Any:
        return self.do_open(_SecureConnection, request, context=ssl.create_default_context())


@cache
def _opener() -> OpenerDirector:
    """Without redirects: an audit is of one server."""
    opener = OpenerDirector()
    for handler in (ProxyHandler, UnknownHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor, _Http, _Https):
        opener.add_handler(handler())
    return opener


class Response:
    """An open response, of which no more is read than the bounds allow."""

    def __init__(self, response: HTTPResponse, bounds: Bounds) -> None:
        self._response, self._bounds = response, bounds
        self.server = (response.headers.get("Server") or "")[:200]
        """What the server calls itself, if it does."""
        self.received = 0
        """Bytes of the body so far."""

    def body(self) -> bytes:
        """All of it. Raises ServerError."""
        pieces = []
        with _failures(self._bounds.seconds):
            while piece := self._response.read1(min(_PIECE, self._left + 1)):
                pieces.append(self._counted(piece))
        if self._response.length:
            raise ServerError("cut off", f"{self._response.length} bytes less than announced")
        return b"".join(pieces)

    def lines(self) -> Iterator[bytes]:
        """Line after line. Raises ServerError."""
        for _ in range(self._bounds.lines):
            with _failures(self._bounds.seconds):
                line = self._response.readline(self._left + 1)
            if not line:
                return
            yield self._counted(line)
        raise ServerError("too many lines", f"more than {self._bounds.lines} lines")

    @property
    def _left(self) -> int:
        return self._bounds.bytes - self.received

    def _counted(self, piece: bytes) -> bytes:
        self.received += len(piece)
        if self._left < 0:
            raise ServerError("too long", f"more than {self._bounds.bytes} bytes")
        return piece


@contextmanager
def opened(request: Request, bounds: Bounds) -> Iterator[Response]:
    """The response to a request. Raises ServerError, also for a status of failure."""
    with _failures(bounds.seconds):
        response = _opener().open(request, timeout=max(_LEAST_SECONDS, bounds.seconds))
    with response:
        yield Response(response, bounds)


def message_of(content: bytes) -> str:
    """The message of an error, as OpenAI's API and others write it."""
    try:
        body = json.loads(content)
        error = body.get("error") or body.get("detail") or body.get("message")
        text = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError, RecursionError):
        text = None
    return " ".join(text[:300].split()) if isinstance(text, str) else "no message"


@contextmanager
def _failures(seconds: float) -> Iterator[None]:
    """Makes ServerErrors of what sockets and HTTP raise."""
    try:
        yield
    except HTTPError as error:
        raise _refusal(error) from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            raise ServerError("timed out", f"no whole answer within {seconds:.3g} s") from error
        if isinstance(error, URLError):
            raise ServerError("no connection", f"no connection ({str(reason)[:200]})") from error
        raise ServerError("cut off", f"no whole answer ({repr(error)[:200]})") from error


def _refusal(error: HTTPError) -> ServerError:
    """The error of a failing status."""
    try:
        with error:
            message = message_of(error.read(_PIECE))
    except (OSError, HTTPException, ValueError):
        message = "no message"
    if location := error.headers.get("Location"):
        message = f"redirected to {quote(location)}; audit that address"
    return ServerError(f"status {error.code}", message, error.code)
