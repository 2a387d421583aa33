"""A client of OpenAI's API for text: completions and chat completions, streamed or not.

An audit posts JSON and reads lines, from a few dozen threads: the standard library does that, so it needs no package.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from trigraph.models.errors import TrigraphError
from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.plan import Case, Sampling

_TRIES = 5  # of a request that a busy server refuses
_LONGEST_PAUSE = 10.0  # seconds between them
_MOST_BYTES = 64 << 20  # of a response


class ServerError(Exception):
    """The server refused or failed a request. `status` is None where it sent no response."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """One server, of which `find_out` learns what it can do. Any number of threads may ask."""

    def __init__(self, url: str, *, model: str | None = None, api: str = "auto", key: str | None = None) -> None:
        """`api`: "chat", "completions", or "auto" for completions where the server has them."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TrigraphError(f"{url}: give the address of a server, such as http://127.0.0.1:8080")
        if api not in ("auto", "chat", "completions"):
            raise TrigraphError(f"api is {api}; choose auto, chat or completions")
        self.root = url.rstrip("/").removesuffix("/v1")
        self.model, self.api = model, api
        self.seconds = 600.0
        """Longest silence of the server."""
        self.server = ""
        """What the server calls itself, if it does."""
        self.logprobs = self.seeds = True
        """Whether the server takes these fields."""
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def find_out(self) -> None:
        """Learns the model's name, the API and the fields that the server takes. Raises TrigraphError without any."""
        if self.model is None:
            self.model = self._first_model()
        apis = ("completions", "chat") if self.api == "auto" else (self.api,)
        refusals = []
        for self.api in apis:
            try:
                self._find_fields()
                return
            except ServerError as error:
                refusals.append(f"{self._path} answers: {error}")
        raise TrigraphError(f"{self.root}: no completion could be made ({'; '.join(refusals)})")

    def _first_model(self) -> str | None:
        try:
            models = self.get("/v1/models").get("data") or []
            return str(models[0]["id"]) if models else None
        except ServerError as error:
            if error.status is None:
                raise TrigraphError(f"{self.root}: {error}; is the server running?") from error
            return None  # it may have one model without a name

    def _find_fields(self) -> None:
        """Tries a short completion with all fields, then without those that the server may refuse."""
        for fields in ((True, True), (False, True), (True, False), (False, False)):
            self.logprobs, self.seeds = fields
            try:
                answer = self.complete(Case("Zebras", Sampling(temperature=0.8, seed=1)), 2)
                self.logprobs = bool(answer.logprobs)
                return
            except ServerError as error:
                last = error
                if error.status not in (400, 422, 501):
                    break
        raise last

    @property
    def _path(self) -> str:
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"

    def complete(
        self, case: Case, tokens: int, *, prompt: Any = None, stream: bool = False, api: str | None = None
    ) -> Answer:
        """Completes a case with at most `tokens` tokens. `prompt`: what to send in its place. Raises ServerError."""
        chat = (api or self.api) == "chat"
        given = case.prompt if prompt is None else prompt
        body: dict[str, Any] = {"messages": [{"role": "user", "content": given}]} if chat else {"prompt": given}
        body |= {"max_tokens": tokens, "temperature": case.sampling.temperature}
        if self.model is not None:
            body["model"] = self.model
        if case.sampling.temperature:
            body["top_p"] = case.sampling.top_p
        if self.seeds and case.sampling.seed is not None:
            body["seed"] = case.sampling.seed
        if self.logprobs:
            body |= {"logprobs": True, "top_logprobs": 1} if chat else {"logprobs": 1}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        if stream:
            return _answer(_events(self._post(path, body | {"stream": True})))
        return _answer([self.post(path, body)])

    def get(self, path: str) -> dict[str, Any]:
        """The JSON at a path. Raises ServerError."""
        return _read(self._open(Request(self.root + path, headers=self._headers)))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON that answers a body. Raises ServerError."""
        return _read(self._post(path, body))

    def _post(self, path: str, body: dict[str, Any]) -> HTTPResponse:
        request = Request(self.root + path, json.dumps(body).encode(), self._headers, method="POST")
        for attempt in range(_TRIES):
            try:
                return self._open(request)
            except ServerError as error:
                if error.status not in (429, 503) or attempt == _TRIES - 1:
                    raise
                time.sleep(min(_LONGEST_PAUSE, 2**attempt) * random.uniform(0.5, 1))
        raise AssertionError("unreachable")

    def _open(self, request: Request) -> HTTPResponse:
        try:
            response: HTTPResponse = urlopen(request, timeout=self.seconds)
        except HTTPError as error:
            with error:
                raise ServerError(_message(error.read(1 << 16), error.code), error.code) from error
        except URLError as error:
            raise ServerError(f"no connection ({error.reason})") from error
        except (OSError, HTTPException) as error:
            raise ServerError(f"no response ({error!r})") from error
        self.server = self.server or (response.headers.get("Server") or "")
        return response


def _read(response: HTTPResponse) -> dict[str, Any]:
    try:
        with response:
            found = json.loads(response.read(_MOST_BYTES))
    except (OSError, HTTPException, ValueError) as error:
        raise ServerError(f"the response is cut or not JSON ({error!r})") from error
    if not isinstance(found, dict):
        raise ServerError("the response is not a JSON object")
    return found


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events, up to its end."""
    size = 0
    try:
        with response:
            for line in response:
                size += len(line)
                if size > _MOST_BYTES or not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                found = json.loads(data)
                if "error" in found:
                    raise ServerError(_message(data, 500), 500)
                yield found
    except (OSError, HTTPException, ValueError) as error:
        raise ServerError(f"the stream is cut or not JSON ({error!r})") from error


def _answer(chunks: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> Answer:
    """Puts a completion together: one response, or the chunks of a stream."""
    text: list[str] = []
    tokens: list[str] = []
    logprobs: list[float] = []
    for chunk in chunks:
        for choice in chunk.get("choices") or []:
            message = choice.get("message") or choice.get("delta") or {}
            parts = (message.get("reasoning_content") or message.get("reasoning"), message.get("content"))
            text += [part for part in (*parts, choice.get("text")) if isinstance(part, str)]
            found = choice.get("logprobs") or {}
            for entry in found.get("content") or []:
                tokens.append(str(entry.get("token")))
                logprobs.append(float(entry["logprob"]))
            tokens += map(str, found.get("tokens") or [])
            logprobs += [float(value or 0) for value in found.get("token_logprobs") or []]
    return Answer("".join(text), tuple(tokens), tuple(logprobs))


def _message(body: bytes, status: int) -> str:
    """The message of an error, as OpenAI's API and others write it."""
    try:
        found = json.loads(body)
        error = found.get("error") or found.get("detail") or found.get("message")
        text = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = None
    return f"{status}: {str(text or 'no message')[:300]}"
