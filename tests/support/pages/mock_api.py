"""A server of the chat page, with an API whose answers a test writes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trigraph.runtime.server.page import FOLDER, HEADERS

LIMIT = 600.0
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
}


@dataclass
class Answer:
    """What the next request gets: a stream, or an error."""

    pieces: Sequence[tuple[str, str, int, int] | threading.Event] = ()
    """Field of the delta, text, tokens, free ones; or an event until which the stream stands still."""
    pause: float = 0.0
    """Seconds before every piece."""
    prompt: int = 40
    reused: int = 0
    finish: str = "stop"
    error: tuple[int, dict[str, Any], dict[str, str]] | None = None
    """Status, body, and headers in place of a stream."""
    cut: bool = False
    """Whether the stream ends without its end mark."""


@dataclass
class MockApi:
    """What the server answers, and what it was asked."""

    address: str = ""
    key: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    """How many pieces had been sent when a client went away, one entry for each that did."""
    bundled: bool = True
    """Whether the page has its libraries."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """What /props tells of sampling."""
    models: Sequence[str] = ("mock-35B",)
    """The names of the models served."""
    images: dict[str, int] | None = None
    """What /v1/models tells of images; None for a model that reads text only."""
    running: int = 0
    tokens: int = 0
    accepted: int = 0
    drafted: int = 0

    def metrics(self) -> str:
        values = {
            "num_requests_running": self.running,
            "num_requests_waiting": 0,
            "generation_tokens_total": self.tokens,
            "spec_decode_num_draft_tokens_total": self.drafted,
            "spec_decode_num_accepted_tokens_total": self.accepted,
        }
        lines = [f'# TYPE vllm:{name} x\nvllm:{name}{{model_name="mock"}} {value}.0' for name, value in values.items()]
        return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    api: MockApi

    def log_message(self, *_: object) -> None:
        pass

    def send(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, body: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send(status, "application/json", json.dumps(body).encode(), headers)

    def allowed(self) -> bool:
        if not self.api.key or self.headers.get("Authorization") == f"Bearer {self.api.key}":
            return True
        self.send_json({"error": {"message": "Invalid API key."}}, 401)
        return False

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send_json({"status": "ok"})
        elif self.path == "/metrics":
            self.send(200, "text/plain; version=0.0.4", self.api.metrics().encode())
        elif self.path == "/props":
            self.send_json({"default_generation_settings": {"params": self.api.defaults}})
        elif self.path == "/v1/models":
            if self.allowed():
                known = {"max_model_len": 32768, "meta": {"images": self.api.images}}
                self.send_json({"object": "list", "data": [{"id": name, **known} for name in self.api.models]})
        else:
            path = FOLDER / (self.path.lstrip("/") or "index.html")
            if path.is_file() and (self.api.bundled or "bundle" not in self.path):
                self.send(200, TYPES[path.suffix], path.read_bytes())
            else:
                self.send(404, "text/plain", b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        self.api.requests.append(body)
        answer = self.api.answers.pop(0)
        if answer.error is not None:
            status, told, headers = answer.error
            self.send_json(told, status, headers)
            return
        self.send(200, "text/event-stream", b"")
        self.api.running += 1
        sent = 0
        try:
            for sent, chunk in enumerate(_chunks(self.api, answer)):  # noqa: B007 (told when the client goes)
                self.wfile.write(chunk)
                self.wfile.flush()
        except OSError:
            self.api.gone.append(sent)
        finally:
            self.api.running -= 1


def _chunks(api: MockApi, answer: Answer) -> Iterator[bytes]:
    tokens = accepted = calls = 0

    def event(choices: list[dict[str, Any]]) -> bytes:
        usage = {
            "prompt_tokens": answer.prompt,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": answer.reused},
            "completion_tokens_details": {"accepted_prediction_tokens": accepted},
        }
        return b"data: " + json.dumps({"model": "mock-35B", "choices": choices, "usage": usage}).encode() + b"\n\n"

    yield event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    for piece in answer.pieces:
        if isinstance(piece, threading.Event):
            piece.wait(LIMIT)
            continue
        name, text, count, free = piece
        time.sleep(answer.pause)
        tokens, accepted = tokens + count, accepted + free
        api.tokens, api.accepted, api.drafted = api.tokens + count, api.accepted + free, api.drafted + free + 1
        delta: dict[str, Any] = {name: text}
        if name == "tool_calls":
            named = {} if calls else {"name": "weather"}
            delta = {name: [{"index": 0, "function": named | {"arguments": text}}]}
            calls += 1
        yield event([{"index": 0, "delta": delta, "finish_reason": None}])
    yield event([{"index": 0, "delta": {}, "finish_reason": answer.finish}])
    yield event([])
    if not answer.cut:
        yield b"data: [DONE]\n\n"


@contextmanager
def mock_api() -> Iterator[MockApi]:
    """Serves the page and the API on a free port of loopback."""
    api = MockApi()
    handler = type("Handler", (_Handler,), {"api": api})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    api.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
