"""A server of OpenAI's API for `trigraph audit`, honest unless it is given a lie. Its tokens are single characters."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

Body = dict[str, Any]


def text_of(body: Body) -> str:
    """A text that continues itself, token by token: each is made of its position and the prompt's first line."""
    prompt = body["prompt"]
    begun = prompt.rstrip("#0123456789")
    at = len(prompt) - len(begun)
    return "".join("#0123456789"[(len(begun) + i) % 11] for i in range(at, at + 40))


@dataclass
class AuditedServer:
    """What a server has, what it was asked, and how it lies."""

    answers: Callable[[Body], str] = text_of
    """The text for a body, whose prompt is a text."""
    lacks: frozenset[str] = frozenset()
    """Of completions, logprobs, seed, usage, stream_usage, model, finish, fingerprint, tokenize, template."""
    spoil: Callable[[Body, Body], Any] = lambda reply, _body: reply
    """Changes the JSON of an answer; a number is a status of failure."""
    wire: Callable[[Iterable[bytes], Body], Iterable[bytes]] = lambda pieces, _body: pieces
    """Changes the bytes of an answer."""
    models: Any = field(default_factory=lambda: {"data": [{"id": "made-up"}]})
    """What /v1/models answers."""
    condition: str = "finding out"
    """What the audit is at, as its progress says."""
    bodies: list[Body] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the test is over."""
    _ids: Iterator[int] = field(default_factory=count)

    def progress(self, condition: str, done: int, total: int) -> None:
        """For `audit`, so that lies know the condition."""
        self.condition = condition

    def reply(self, path: str, body: Body) -> tuple[int, Any]:
        """Status and JSON that answer a body."""
        if path == "/tokenize" and "tokenize" not in self.lacks:
            return 200, {"tokens": [ord(character) for character in body["content"]]}
        if path == "/apply-template" and "template" not in self.lacks:
            return 200, {"prompt": body["messages"][0]["content"]}
        chat = path == "/v1/chat/completions"
        if not chat and (path != "/v1/completions" or "completions" in self.lacks):
            return 404, {"error": {"message": f"no {path}"}}
        for name in ("logprobs", "seed"):
            if name in body and name in self.lacks:
                return 400, {"error": {"message": f"{name} is not supported"}}
        given = body["messages"][0]["content"] if chat else body["prompt"]
        prompt = given if isinstance(given, str) else "".join(map(chr, given))
        self.bodies.append(body)
        reply = self.spoil(self._answer(body, prompt, chat), body | {"prompt": prompt})
        return (reply, {"detail": "broken"}) if isinstance(reply, int) else (200, reply)

    def _answer(self, body: Body, prompt: str, chat: bool) -> Body:
        text = self.answers(body | {"prompt": prompt})[: body["max_tokens"]]
        values = [-ord(character) / 8 for character in text]
        choice: Body = {"index": 0} | ({"message": {"content": text}} if chat else {"text": text})
        if "logprobs" in body and chat:
            entries = [{"token": c, "logprob": v} for c, v in zip(text, values, strict=True)]
            choice["logprobs"] = {"content": entries}
        elif "logprobs" in body:
            choice["logprobs"] = {"tokens": [*text], "token_logprobs": values}
        number = next(self._ids)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(text)}
        whole = {
            "id": f"cmpl-{number}",
            "created": number,
            "model": body.get("model", "made-up"),
            "system_fingerprint": "fp",
            "choices": [choice | {"finish_reason": "length"}],
            "usage": usage | {"prompt_tokens_details": {"cached_tokens": number}},
            "timings": {"prompt_ms": number / 7},
        }
        for name, key in (("usage", "usage"), ("model", "model"), ("fingerprint", "system_fingerprint")):
            if name in self.lacks:
                del whole[key]
        if "finish" in self.lacks:
            whole["choices"][0]["finish_reason"] = None
        return whole

    def events(self, whole: Any, body: Body) -> Iterator[bytes]:
        """An answer as a stream, a token at a time."""
        yield b": alive\n\n"
        if not isinstance(whole, dict) or not whole.get("choices") or not isinstance(whole["choices"][0], dict):
            yield _event(whole)
            return
        usage, options = whole.pop("usage", None), body.get("stream_options") or {}
        for choice in whole["choices"]:
            for piece in _pieces(choice):
                yield _event(whole | {"choices": [piece]})
        if usage is not None and options.get("include_usage") and "stream_usage" not in self.lacks:
            yield _event(whole | {"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


def _event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _pieces(choice: Body) -> Iterator[Body]:
    """The choices of the chunks that a choice is sent in; the last one has the reason why it ends."""
    rest = {name: value for name, value in choice.items() if name not in ("text", "message", "logprobs")}
    chat, message, found = "message" in choice, choice.get("message") or {}, choice.get("logprobs") or {}
    name = "content" if chat else "tokens"
    values = found.get("token_logprobs") or []
    for key, text in message.items() if chat else [("text", choice["text"])]:
        tokens = found.get(name) if isinstance(found.get(name), list) and key in ("content", "text") else None
        for i in range(max(len(text), len(tokens or ()))):
            letter = text[i : i + 1]
            piece: Body = {"index": choice.get("index")} | ({"delta": {key: letter}} if chat else {"text": letter})
            if tokens is not None:
                own = {name: tokens[i : i + 1]}
                piece["logprobs"] = own if chat else own | {"token_logprobs": values[i : i + 1]}
            yield piece | {"finish_reason": None}
    end: Body = {"delta": {}} if chat else {"text": ""}
    yield rest | end


class _Handler(BaseHTTPRequestHandler):
    server_of: AuditedServer

    def do_GET(self) -> None:
        self._send(200, [json.dumps(self.server_of.models).encode()])

    def do_POST(self) -> None:
        server, body = self.server_of, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, found = server.reply(self.path, body)
        streamed = status == 200 and body.get("stream")
        self._send(status, server.wire(server.events(found, body) if streamed else [json.dumps(found).encode()], body))

    def _send(self, status: int, pieces: Iterable[bytes]) -> None:
        with suppress(OSError):  # the client may have gone
            self.send_response(status)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def running(server: AuditedServer) -> Iterator[str]:
    """Serves on a free port of loopback; gives the address."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": server}))
    http.daemon_threads = True
    http.request_queue_size = 64
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        server.ended.set()
        http.shutdown()
        http.server_close()
