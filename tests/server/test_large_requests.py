"""Requests that are far larger than any context: refused at once, with little memory."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.runtime.server.openai.schema import CompletionRequest
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
        deadline = time.monotonic() + 300
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


@pytest.mark.parametrize(
    "headers", [b"", b"Connection: close\r\n", b"Authorization: Bearer wrong\r\nConnection: close\r\n"]
)
@pytest.mark.parametrize("size", [33 << 20, 56 << 20])
def test_an_answer_is_read_after_the_whole_body_was_sent(headers: bytes, size: int) -> None:
    """As most clients do: a connection that is closed before would be reset under them."""
    keys = ("right",) if b"wrong" in headers else ()
    with serving(replying("Yes."), Settings(port=0, api_keys=keys)) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=100) as connection:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n" % (headers, size)
            connection.sendall(head + bytes(size))
            assert connection.recv(12) == (b"HTTP/1.1 401" if keys else b"HTTP/1.1 413")


def test_a_client_that_asks_first_sends_nothing(roomy: str) -> None:
    host, port = roomy.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=100) as connection:
        connection.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            % (1 << 40)
        )
        assert connection.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_heads_that_are_too_large(roomy: str, end: bytes) -> None:
    host, port = roomy.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=100) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + end)
        answer = connection.recv(10_000)
        while part := connection.recv(10_000) if b"}" not in answer else b"":
            answer += part
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large") and b"65,536 bytes" in answer


def test_what_is_no_http(roomy: str) -> None:
    host, port = roomy.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=100) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")  # as TLS begins
        answer = connection.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 400") and b'"type": "invalid_request_error"' in answer


def test_head_is_as_get(roomy: str) -> None:
    for path in ("/health", "/metrics", "/v1/models", "/"):
        got, head = httpx.get(roomy + path), httpx.head(roomy + path)
        assert got.status_code == head.status_code == 200 and not head.content
        assert head.headers["content-type"] == got.headers["content-type"]
    assert httpx.head(f"{roomy}/v1/completions").status_code == 405


@pytest.mark.parametrize("value", [0, 1e-300, 1e300])
@pytest.mark.parametrize("name", ["repeat_penalty", "repetition_penalty"])
def test_penalties_that_logits_cannot_bear(roomy: str, name: str, value: float) -> None:
    response = httpx.post(f"{roomy}/v1/completions", json={"prompt": "a", name: value})
    assert response.status_code == 400 and re.search("0.01|100", response.json()["error"]["message"])
    response = httpx.post(f"{roomy}/v1/completions", json={"prompt": "a", "presence_penalty": 1e308})
    assert response.status_code == 400 and "1e+30" in response.json()["error"]["message"]


@pytest.mark.parametrize("given", [{str(token): "x" for token in range(999)}, [[1, "x"]] * 999], ids=["object", "list"])
def test_biases_are_read_to_the_first_that_is_wrong(roomy: str, given: object) -> None:
    """And not all in one call, during which no other thread runs."""
    CompletionRequest.model_validate({"prompt": "a", "logit_bias": given})
    response = httpx.post(f"{roomy}/v1/completions", json={"prompt": "a", "logit_bias": given})
    assert response.status_code == 400 and re.search(r"[(\[][01], 'x'[)\]]", response.json()["error"]["message"])


def test_names_of_fields_are_taken_apart_once(roomy: str) -> None:
    """And not for each choice, in the thread that answers everybody."""
    asked = {"prompt": "a", "n_predict": 1, "n": 64, "response_fields": [f"{i}{'/a' * 30_000}" for i in range(256)]}
    started = time.process_time()
    assert httpx.post(f"{roomy}/completion", json=asked, timeout=600).json() == [{}] * 64
    assert time.process_time() - started < 15
    response = httpx.post(f"{roomy}/completion", json={"prompt": "a", "response_fields": ["a"] * 257})
    assert response.status_code == 400 and "at most 256" in response.json()["error"]["message"]


def test_log_probabilities_of_a_request_are_limited(roomy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An echo of one prompt for each of 128 choices took gigabytes, in seconds."""
    asked = {"prompt": [97] * 4000, "max_tokens": 1, "echo": True, "logprobs": 20, "n": 50}
    response = httpx.post(f"{roomy}/v1/completions", json=asked)
    assert response.status_code == 400 and "asks for 4,200,000 log-probabilities" in response.json()["error"]["message"]
    monkeypatch.setattr("trigraph.runtime.server.options.MOST_LOGPROBS", 24)
    chat = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, "n": 2}
    plain = {"prompt": ["a", "b"], "ignore_eos": True, "max_tokens": 7}
    for path, fields in (
        ("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 1}),
        ("/v1/completions", {**plain, "logprobs": 1}),
    ):
        found = httpx.post(f"{roomy}{path}", json=fields).json()
        assert found["usage"]["completion_tokens"] == 12
        assert [choice["finish_reason"] for choice in found["choices"]] == ["length"] * 2
    found = httpx.post(f"{roomy}/completion", json={**plain, "n_probs": 1}).json()
    assert [(choice["tokens_predicted"], choice["stop_type"]) for choice in found] == [(6, "limit")] * 2
    assert httpx.post(f"{roomy}/v1/completions", json=plain).json()["usage"]["completion_tokens"] == 14
