"""Access control: keys, and which pages of a browser.

A page of another host must not reach a server on this machine through the browser of its user. So a server on loopback
takes only requests to a name of this machine, which ends DNS rebinding, and from its own page.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from trigraph.models.errors import quote
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.settings import Settings

MAX_HEAD_BYTES = 64 << 10
MOST_DISCARDED = 64 << 20  # bytes
_DISCARDING_SECONDS = 10.0
_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
_KEY_REMEDY = "send it as Authorization: Bearer KEY"


class Security:
    """ASGI middleware that refuses requests before their body is read."""

    def __init__(self, app: ASGIApp, settings: Settings, guarded: Collection[str]) -> None:
        """`guarded`: the paths that need a key; one that ends in a parameter (`/v1/models/{model}`) stands for all."""
        self._app = app
        self._guarded = {path for path in guarded if "{" not in path}
        self._prefixes = tuple(path.partition("{")[0] for path in guarded if "{" in path)
        self._settings = settings
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks a request before the application sees it."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ApiError as error:
                await discard(receive)
                body = error.body(scope["path"])
                await JSONResponse(body, error.status, headers=error.headers)(scope, receive, send)
                return
            if scope["method"] == "HEAD":  # the same as GET; the body is left out where it would be sent
                scope = {**scope, "method": "GET"}
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        head = [scope["raw_path"], scope["query_string"], *(part for field in scope["headers"] for part in field)]
        if sum(map(len, head)) > MAX_HEAD_BYTES:
            raise ApiError(f"the request's headers have more than {MAX_HEAD_BYTES:,} bytes; send fewer", 431)
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:  # proxies may read another body than we do
            raise ApiError("Content-Length and Transfer-Encoding exclude each other; send one of them")
        if self._settings.local:
            self._check_page(headers)
        guarded = scope["path"] in self._guarded or scope["path"].startswith(self._prefixes)
        if self._keys and guarded and scope["method"] != "OPTIONS":
            given = _key(headers).encode()
            matches = [hmac.compare_digest(given, key) for key in self._keys]  # all of them, for the same time
            if True not in matches:
                what = "wrong" if given else "missing"
                raise ApiError(f"the API key is {what}; {_KEY_REMEDY}", 401, code="invalid_api_key")

    def _check_page(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if _name(host) not in {*_LOCAL_NAMES, self._settings.host}:
            raise ApiError("this server answers to localhost only; --host changes that", 403, code="wrong_host")
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2] == host:
            return
        if self._settings.origins is None or not self._settings.origins.fullmatch(origin):
            raise ApiError(
                f"the origin {quote(origin)} is not allowed; --cors-origin adds it", 403, code="wrong_origin"
            )


async def discard(receive: Receive) -> None:
    """Reads on what a refused request has yet to send, up to a limit: a client reads its answer after that."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARDING_SECONDS):
            while size <= MOST_DISCARDED and (message := await receive()).get("more_body"):
                size += len(message["body"])


def _name(host: str) -> str:
    """The host's name without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _key(headers: Headers) -> str:
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
