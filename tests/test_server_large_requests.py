"""Requests that are far larger than any context: refused at once, with little memory."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from support.server import PLAIN_TEMPLATE, replying, serving
from trigraph.runtime.server.settings import Settings


@pytest.fixture(scope="module")
def roomy() -> Iterator[str]:
    with serving(replying("Yes.", template=PLAIN_TEMPLATE), Settings(port=0, max_bodies=20 << 20)) as address:
        yield address


LARGE = {
    "/v1/completions": [b'{"prompt":[%s1]}' % (b"1," * (7 << 20)), b'{"prompt":"%s"}' % (b"word " * (3 << 20))],
    "/v1/chat/completions": [
        b'{"messages":[{"role":"user","content":"%s"}]}' % (b"<|end" * (3 << 20)),
        b'{"messages":[{"role":"user","content":"%s"}]}' % (b"word " * (1 << 20)),
        b'{"messages":[%s{}]}' % (b'{"role":"user"},' * 70_000),
    ],
    "/v1/messages": [b'{"max_tokens":1,"messages":[{"role":"user","content":[%s{}]}]}' % (b'{"type":"a"},' * 900_000)],
    "/v1/responses": [b'{"input":[%s1]}' % (b"{}," * 299_000)],
    "/tokenize": [b'{"content":"%s"}' % (b"word " * (3 << 20)), b'{"content":"%s"}' % (b"a" * (15 << 20))],
    "/detokenize": [b'{"tokens":[%s1]}' % (b"1," * (1 << 20))],
}


@pytest.mark.parametrize("path", LARGE)
def test_large_requests_are_refused_at_once(roomy: str, path: str) -> None:
    for body in LARGE[path]:
        started = time.process_time()
        response = httpx.post(f"{roomy}{path}", content=body, timeout=60)
        assert response.status_code in (400, 413), (body[:100], response.text)
        assert time.process_time() - started < 8, body[:100]  # some took 30 s, and GBs


def test_too_many_large_requests_at_once(roomy: str) -> None:
    host, port = roomy.removeprefix("http://").split(":")
    begun = [socket.create_connection((host, int(port))) for _ in range(2)]
    try:
        for connection in begun:
            head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (15 << 20)
            connection.sendall(head + bytes(9 << 20))
        deadline = time.monotonic() + 10
        while (found := httpx.post(f"{roomy}/tokenize", content=bytes(5 << 20))).status_code != 429:
            assert time.monotonic() < deadline
        assert found.json()["error"]["code"] == "too_busy" and "retry-after" in found.headers
    finally:
        for connection in begun:
            connection.close()
    while httpx.post(f"{roomy}/tokenize", content=bytes(5 << 20)).status_code != 400:
        assert time.monotonic() < deadline
    assert httpx.post(f"{roomy}/tokenize", json={"content": "Hello"}).json()["count"] == 5


def test_a_long_text_is_counted(roomy: str) -> None:
    asked = {"messages": [{"role": "user", "content": 10_000 * "x"}]}  # the context has 4096 tokens
    assert httpx.post(f"{roomy}/v1/messages/count_tokens", json=asked).json()["input_tokens"] > 10_000
    assert httpx.post(f"{roomy}/tokenize", json={"content": 10_000 * "x"}).json()["count"] == 10_000
    refused = httpx.post(f"{roomy}/v1/messages", json={**asked, "max_tokens": 1}).json()["error"]["message"]
    assert re.fullmatch(r"prompt is too long: 100\d\d tokens > 4096 maximum", refused)  # as Anthropic's clients read it
