"""Damaged answers of a server under audit: each is read or refused, and every report of them can be shown.

Damage is of JSON, of events, and of the bytes of HTTP. Every fiftieth case is a whole audit.
"""

from __future__ import annotations

import io
import json
import random
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fuzz.damage import damage_bytes, damage_json
from support.servers.audited_server import AuditedServer, Body, running
from support.servers.lies import PLAN, PROMPTS
from trigraph.models.errors import TrigraphError
from trigraph.runtime.audit import Client, Report, audit
from trigraph.runtime.audit.answer import Answer
from trigraph.runtime.audit.comparison import difference, unlike_others
from trigraph.runtime.audit.connection import ServerError
from trigraph.runtime.audit.outcome import ALONE, Outcome
from trigraph.runtime.audit.page import write_page
from trigraph.runtime.audit.plan import GREEDY, Case
from trigraph.runtime.audit.tables import counts_table, findings_table

_CASE = Case(PROMPTS[1].text, GREEDY)
_SURROGATE = b'"\\ud800"'


class Fuzzer:
    """A server whose answer is set before it is asked."""

    def __init__(self, folder: Path) -> None:
        self._page = folder / "page.html"
        self._content = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        self._expected = {api: self._ask(api, stream=False, rng=None) for api in ("completions", "chat")}

    def run(self, seed: int, case: int) -> str:
        """Damage one answer, or some of an audit, and show what is made of it."""
        rng = random.Random(f"{seed}:{case}")
        if case % 50 == 49:
            return self._audit(rng)
        api, stream = rng.choice(("completions", "chat")), rng.random() < 0.5
        try:
            answer = self._ask(api, stream=stream, rng=rng)
        except ServerError as error:
            raise TrigraphError(f"{error.what}: {error}") from error
        expected = self._expected[api]
        found = difference(expected, answer, PLAN.tokens)
        alone = Outcome(ALONE, _CASE, answer, unlike_others(answer, expected, PLAN.tokens))
        self._show(_report([alone], [Outcome("again", _CASE, answer, found)]))
        return "same" if found is None else "different"

    def _ask(self, api: str, *, stream: bool, rng: random.Random | None) -> Answer:
        host, port = self._listener.getsockname()
        client = Client(f"http://{host}:{port}", model="m", api=api)
        client.seconds = 20.0
        self._content = _response(api, stream=stream, rng=rng)
        return client.complete(_CASE, PLAN.tokens, stream=stream)

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                request = b""
                while not request.endswith(b"}"):
                    request += connection.recv(1 << 16)
                with suppress(OSError):  # the client has seen enough
                    connection.sendall(self._content)

    def _audit(self, rng: random.Random) -> str:
        def spoil(reply: Body, _body: Body) -> Any:
            reply = damage_json(rng, reply) if rng.random() < 0.1 else reply
            return 500 if isinstance(reply, int) else reply

        def wire(pieces: Iterable[bytes], _body: Body) -> Iterator[bytes]:
            whole = b"".join(pieces)
            yield damage_bytes(rng, whole) if rng.random() < 0.05 else whole

        server = AuditedServer(spoil=spoil, wire=wire)
        with running(server) as url:
            plan = replace(PLAN, prompts=PROMPTS[:3], idle=0.0, timeout=20.0)
            report = audit(Client(url, api=rng.choice(("completions", "chat"))), plan)
        self._show(report)
        return "unaudited" if report.unaudited else "audited"

    def _show(self, report: Report) -> None:
        json.loads(json.dumps(report.as_json(), allow_nan=False))
        write_page(report, self._page)
        self._page.read_text(encoding="utf-8")
        console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=110)
        console.print(counts_table(report))
        if (findings := findings_table(report)) is not None:
            console.print(findings)
        assert len(report.headline()) < 2000


def _response(api: str, *, stream: bool, rng: random.Random | None) -> bytes:
    """The bytes of HTTP that answer the case."""
    server, chat = AuditedServer(), api == "chat"
    body = {"max_tokens": PLAN.tokens, "temperature": 0, "logprobs": 1, "stream_options": {"include_usage": True}}
    body |= {"messages": [{"content": _CASE.prompt}]} if chat else {"prompt": _CASE.prompt}
    reply: Any = server.reply("/v1/chat/completions" if chat else "/v1/completions", body)[1]
    where = "" if rng is None else rng.choice(("json", "json", "events", "bytes"))
    if where == "json" and rng is not None:
        for _ in range(rng.choice((1, 1, 3))):
            reply = damage_json(rng, reply)
    try:
        pieces = [*server.events(reply, body)] if stream else [json.dumps(reply).encode()]
    except (TypeError, AttributeError, KeyError):  # damaged beyond what can be streamed
        pieces = [b"data: " + json.dumps(reply).encode() + b"\n\n"]
    if where == "events" and rng is not None:
        pieces = [*_damaged_events(rng, pieces)]
    content = b"".join(pieces)
    if rng is not None and rng.random() < 0.05:
        content = content.replace(b'"length"', _SURROGATE).replace(b'"text": "', b'"text": "\\udfff')
    head = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: %d\r\n\r\n" % len(content)
    return damage_bytes(rng, head + content) if where == "bytes" and rng is not None else head + content


def _damaged_events(rng: random.Random, pieces: list[bytes]) -> Iterator[bytes]:
    """Damage of single events, and of their order."""
    for piece in pieces:
        if rng.random() < 0.8:
            yield piece
            continue
        match rng.randrange(5):
            case 0:
                yield from (piece, piece)
            case 1:
                yield damage_bytes(rng, piece)
            case 2:
                yield (
                    b"data: "
                    + json.dumps(damage_json(rng, {"choices": [{"delta": {"content": "a"}}]})).encode()
                    + b"\n\n"
                )
            case 3:
                yield piece.rstrip(b"\n")


def _report(alone: list[Outcome], outcomes: list[Outcome]) -> Report:
    """A report of some outcomes."""
    return Report("http://x", "[/red]", "[bold]\ud800", "chat", "now", 1.0, PLAN, alone, outcomes, ("again",), {}, {})
