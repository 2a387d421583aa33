"""A client of OpenAI's API for text: completions and chat completions, streamed or not."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import Request

from trigraph.models.errors import TrigraphError
from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.connection import Bounds, Response, ServerError, message_of, opened
from trigraph.runtime.audit.plan import Case, Sampling
from trigraph.runtime.audit.reply import Reply, parse

_TRIES = 5  # of a request that a busy server refuses
_LONGEST_PAUSE = 10.0  # seconds between them
_REFUSALS = (400, 422, 501)  # of fields that a server does not know
T = TypeVar("T")
_PROBE = Case("Zebras", Sampling(temperature=0.8, seed=1))


class Client:
    """One server, of which `find_out` learns what it can do. Any number of threads may ask."""

    def __init__(self, url: str, *, model: str | None = None, api: str = "auto", key: str | None = None) -> None:
        """`api`: "chat", "completions", or "auto" for completions where the server has them."""
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            known = False
        if not known or not url.isascii() or not url.isprintable() or " " in url:
            raise TrigraphError(f"{url}: give the address of a server, such as http://127.0.0.1:8080")
        if api not in ("auto", "chat", "completions"):
            raise TrigraphError(f"api is {api}; choose auto, chat or completions")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise TrigraphError("the API key has characters that HTTP headers cannot have")
        self.root = url.rstrip("/").removesuffix("/v1")
        self.model, self.api = model, api
        self.seconds = 300.0
        """The longest time of an answer."""
        self.server = ""
        """What the server calls itself, if it does."""
        self.logprobs = self.seeds = True
        """Whether the server takes these fields."""
        self.stream_usage = True
        """Whether streams have usage when it is asked for."""
        self.received = 0
        """Bytes of all answers, about."""
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
                self._find_stream_usage()
                return
            except ServerError as error:
                refusals.append(f"{_path(self.api)} answers: {error.what}, {error}")
                if error.status is None and error.what != "malformed":
                    break
        raise TrigraphError(f"{self.root}: no completion could be made ({'; '.join(refusals)})")

    def _first_model(self) -> str | None:
        try:
            models = self.json("/v1/models").get("data")
        except ServerError as error:
            if error.what in ("no connection", "timed out"):
                raise TrigraphError(f"{self.root}: {error}; is the server running?") from error
            return None  # it may have one model without a name
        first = models[0] if isinstance(models, list) and models else None
        name = first.get("id") if isinstance(first, dict) else None
        return name if isinstance(name, str) and len(name) <= 1000 else None

    def _find_fields(self) -> None:
        """Tries a short completion with all fields, then without those that the server may refuse."""
        for fields in ((True, True), (False, True), (True, False), (False, False)):
            self.logprobs, self.seeds = fields
            try:
                answer = self.complete(_PROBE, 2)
                self.logprobs &= answer.logprobs is not None or not answer.text
                return
            except ServerError as error:
                last = error
                if error.status not in _REFUSALS and error.what != "malformed":
                    break
        raise last

    def _find_stream_usage(self) -> None:
        """Whether streams end with a usage: OpenAI's API has it on request only, and not all servers know of that."""
        try:
            self.stream_usage = self.complete(_PROBE, 2, stream=True).usage is not None
        except ServerError as error:
            self.stream_usage = error.status not in _REFUSALS

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
        if stream:
            body |= {"stream": True} | ({"stream_options": {"include_usage": True}} if self.stream_usage else {})
        reply, path = Reply(tokens), _path("chat" if chat else "completions")
        return self._send(path, body, tokens, lambda response: _read(response, reply, stream=stream))

    def json(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON at a path, or the one that answers a body. Raises ServerError."""
        return self._send(path, body, 1, lambda response: parse(response.body()))

    def _send(self, path: str, body: dict[str, Any] | None, tokens: int, read: Callable[[Response], T]) -> T:
        """What is read from the response, which has the time of one answer for all tries."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.root + path, data, self._headers, method="GET" if data is None else "POST")
        end = time.monotonic() + self.seconds
        for attempt in range(_TRIES):
            left = end - time.monotonic()
            try:
                with opened(request, Bounds(left, (1 << 20) + (8 << 10) * tokens, 10_000 + 8 * tokens)) as response:
                    self.server = self.server or response.server
                    try:
                        return read(response)
                    finally:
                        self.received += response.received
            except ServerError as error:
                pause = min(_LONGEST_PAUSE, 2**attempt) * random.uniform(0.5, 1)
                if error.status not in (429, 503) or attempt == _TRIES - 1 or pause > left:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")


def _path(api: str) -> str:
    return "/v1/chat/completions" if api == "chat" else "/v1/completions"


def _read(response: Response, reply: Reply, *, stream: bool) -> Answer:
    if not stream:
        reply.add(parse(response.body()))
        return reply.answer()
    for line in response.lines():
        data = line.removeprefix(b"data:").strip()
        if data == line or not line.startswith(b"data:"):
            continue
        if data == b"[DONE]":
            return reply.answer()
        chunk = parse(data)
        if chunk.get("error"):
            raise ServerError("error in the stream", message_of(data))
        reply.add(chunk)
    if not reply.ended:
        raise ServerError("cut off", "the stream ended without [DONE] and without a finish_reason")
    return reply.answer()
