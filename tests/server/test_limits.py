"""What a server does not let itself in for: strangers, pages of other hosts, floods, sleepers, malformed requests."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from support.fakes.engine import assert_settled
from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.runtime import Engine
from trigraph.runtime.scheduler.model import Scheduling
from trigraph.runtime.server.settings import Settings

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "top_k": 1}
ENDLESS = {**CHAT, "ignore_eos": True, "max_tokens": 3000}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/v1/messages": {**CHAT, "max_tokens": 4},
    "/v1/messages/count_tokens": CHAT,
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
    "/tokenize": {"content": "Hello"},
    "/detokenize": {"tokens": [72, 73]},
    "/completion": {"prompt": "Hello", "n_predict": 4, "n_probs": 1},
    "/apply-template": CHAT,
    "/v1/responses/input_tokens": {"input": "Hello"},
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return replying("Yes.", template=PLAIN_TEMPLATE)


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[httpx.Client]:
    settings = Settings(port=0, max_body=100_000)
    with serving(engine, settings) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def impatient(engine: Engine) -> Iterator[tuple[str, int]]:
    """Where a server listens that waits two seconds for a request."""
    with serving(engine, Settings(port=0, read_seconds=2.0)) as address:
        host, port = address.removeprefix("http://").split(":")
        yield host, int(port)


def wait_until_idle(engine: Engine) -> None:
    until = time.monotonic() + 200
    while (engine.load.running or engine.load.waiting) and time.monotonic() < until:
        time.sleep(0.005)
    assert not engine.load.running and not engine.load.waiting


def requests_ended(client: httpx.Client) -> Counter[str]:
    """How many requests ended for which reason, as the metrics say."""
    found = re.findall(
        r'^vllm:request_success_total\{.*finished_reason="(\w+)".*\} (\S+)$', client.get("/metrics").text, re.M
    )
    return Counter({reason: int(float(count)) for reason, count in found})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_away_frees_its_requests(engine: Engine, client: httpx.Client, stream: bool, n: int) -> None:
    body = json.dumps({**ENDLESS, "stream": stream, "n": n}).encode()
    before = requests_ended(client)
    with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        while not engine.load.running:
            time.sleep(0.001)
    wait_until_idle(engine)
    until = time.monotonic() + 60  # the server counts a request when its own task ends
    while sum((requests_ended(client) - before).values()) < n and time.monotonic() < until:
        time.sleep(0.01)
    assert requests_ended(client) - before == {"abort": n}
    assert_settled(engine)


def test_too_many_requests() -> None:
    crowded = Engine(replace(replying("Yes.", template=PLAIN_TEMPLATE).model, scheduling=Scheduling(max_waiting=2)))
    with serving(crowded) as address:
        response = httpx.post(f"{address}/v1/chat/completions", json={**CHAT, "n": 8})  # four of them run
        assert response.status_code == 429 and int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert httpx.post(f"{address}/v1/chat/completions", json={**CHAT, "n": 2}).status_code == 200


def test_bodies_that_are_too_large(client: httpx.Client) -> None:
    for content in (b"x" * 100_001, (b"x" * 50_000 for _ in range(3))):  # with a length, and in chunks
        response = client.post("/v1/messages", content=content)
        assert response.status_code == 413 and response.json()["error"]["type"] == "request_too_large"


@pytest.mark.slow
def test_heads_and_bodies_that_do_not_come(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient, timeout=60) as connection:
        connection.sendall(b"GET /health HT")
        assert connection.recv(100) == b""
    with socket.create_connection(impatient, timeout=60) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        assert b" 408 " in connection.recv(100)


@pytest.mark.slow
def test_a_body_that_drips_on_after_the_answer(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient, timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        assert b" 200 " in connection.recv(1000)
        started = time.monotonic()
        with pytest.raises(OSError):  # closed, after the time for a body
            while time.monotonic() - started < 60:
                connection.sendall(b" ")
                time.sleep(0.02)


def test_hosts_and_origins(client: httpx.Client) -> None:
    own = f"localhost:{client.base_url.port}"
    for host, status in ((own, 200), ("127.0.0.1", 200), ("[::1]:9", 200), ("evil.example", 403), ("[", 403)):
        assert client.get("/health", headers={"Host": host}).status_code == status
    for origin, status in ((f"http://{own}", 200), ("http://evil.example", 403), ("null", 403)):
        response = client.get("/v1/models", headers={"Host": own, "Origin": origin})
        assert response.status_code == status and "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic two"}, 401),
        ({"Authorization": "Bearer two"}, 200),
        ({"x-api-key": "one"}, 200),
        ({"x-api-key": "\u00e9".encode()}, 401),
    ],
)
def test_keys(engine: Engine, headers: Any, status: int) -> None:
    with serving(engine, Settings(port=0, api_keys=("one", "two"))) as address:
        for path in ("/v1/models", "/metrics"):
            assert httpx.get(f"{address}{path}", headers=headers).status_code == status
        assert httpx.post(f"{address}/v1/completions", content=b"{", headers=headers).status_code in (400, status)
        assert httpx.get(f"{address}/health").status_code == 200


def test_metrics_count_what_was_done(engine: Engine) -> None:
    def values() -> dict[str, float]:
        lines = httpx.get(f"{address}/metrics").text.splitlines()
        found = [re.fullmatch(r"(\S+?)(?:\{.*\})? (\S+)", line) for line in lines if not line.startswith("#")]
        return {match[1]: float(match[2]) for match in found if match}

    with serving(engine, Settings(port=0)) as address:
        ask = partial(httpx.post, f"{address}/v1/chat/completions", json={**CHAT, "n": 2})
        usages = [ask().json()["usage"] for _ in range(2)]
        found = values()
    assert found["vllm:prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert found["vllm:generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages) == 4 * 5
    assert 0 < found["vllm:prefix_cache_hits_total"] <= found["vllm:prefix_cache_queries_total"]
    details = [usage["completion_tokens_details"] for usage in usages]
    accepted = sum(detail["accepted_prediction_tokens"] for detail in details)
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == accepted
    assert found["vllm:request_success_total"] == found["vllm:e2e_request_latency_seconds_count"] == 4
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0


def test_tokens_there_and_back(client: httpx.Client) -> None:
    found = client.post("/tokenize", json={"content": "Hé <|end|>"}).json()
    assert found["count"] == len(found["tokens"]) == 5
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json()["content"] == "Hé <|end|>"
    pieces = client.post("/tokenize", json={"prompt": "Hi", "with_pieces": True}).json()["tokens"]
    assert pieces == [{"id": ord(c) if c == "?" else pieces[i]["id"], "piece": c} for i, c in enumerate("Hi")]


def mutated(body: bytes, rng: random.Random) -> bytes:
    """The body with a few bytes, or a value, changed."""
    if rng.random() < 0.5:
        values: list[Any] = [
            None,
            True,
            -1,
            0,
            1e400,
            10**30,
            "",
            "\x00",
            "x" * 200,
            [],
            [[]],
            {},
            {"type": "x"},
            [1, "a", None],
        ]
        fields = json.loads(body)
        names = [*fields, "temperature", "n", "stop", "tools", "tool_choice", "response_format", "grammar", "stream"]
        names += ["system", "logit_bias", "json_schema", "chat_template_kwargs", "seed", "top_k", "max_tokens", "text"]
        for _ in range(rng.randint(1, 3)):
            fields[rng.choice(names)] = rng.choice(values)
        return json.dumps(fields).encode()
    found = bytearray(body)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(found) + 1)
        found[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
    return bytes(found)


@pytest.mark.parametrize("path", PATHS)
def test_malformed_requests(client: httpx.Client, engine: Engine, path: str) -> None:
    rng = random.Random(path)
    body = json.dumps(PATHS[path]).encode()
    for number in range(60):
        content = mutated(body, rng)
        response = client.post(path, content=content)
        assert response.status_code in (200, 400, 413), (number, content, response.text)
        if response.status_code != 200:
            assert response.json()["error"]["message"], content
    assert client.post(path, content=body).status_code == 200
    wait_until_idle(engine)
    assert_settled(engine)


@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity"])
@pytest.mark.parametrize("field", ['"metadata": {"a": %s}', '"tools": [{"type": "x", "a": [%s]}]'])
def test_numbers_that_cannot_be_written_again(client: httpx.Client, field: str, number: str) -> None:
    response = client.post("/v1/responses", content=f'{{"input": "Hello", {field % number}}}')
    assert response.status_code == 400 and "should be finite" in response.json()["error"]["message"]


def test_a_conversation_that_the_assistant_begins(client: httpx.Client) -> None:
    begun = {"messages": [{"role": "assistant", "content": "Ye"}], "top_k": 1}
    assert client.post("/v1/chat/completions", json={**begun, "max_tokens": 2}).status_code == 200


def test_an_empty_prompt(client: httpx.Client) -> None:
    response = client.post("/v1/completions", json={"prompt": ""})
    assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_value"


def test_a_prompt_that_is_too_long(client: httpx.Client) -> None:
    response = client.post("/v1/completions", json={"prompt": 5000 * "x"})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "this model's maximum context length is" in error["message"]  # what LiteLLM looks for


def test_paths_and_methods_that_are_not_there(client: httpx.Client) -> None:
    assert client.get("/v1/nothing").status_code == client.post("/v1/nothing").status_code == 404
    wrong = client.get("/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST") and wrong.json()["error"]["message"]
    assert client.get("/../../etc/passwd").status_code == 404
    assert "paths" in client.get("/openapi.json").json()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no signals there")
def test_sigterm_lets_requests_end(tiny_package: Path) -> None:
    command = [sys.executable, "-m", "trigraph.runtime", "serve", str(tiny_package), "--port", "0", "-t", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "TRIGRAPH_API_KEY": ""})
    assert process.stderr is not None
    try:
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+:\d+", line)))
        asked = {"prompt": "In the beginning", "max_tokens": 1500, "ignore_eos": True, "stream": True, "n": 8}
        with httpx.stream("POST", f"{address}/v1/completions", json=asked, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            while (health := httpx.get(f"{address}/health")).status_code == 200:
                time.sleep(0.01)  # until the signal has arrived
            refused = httpx.post(f"{address}/v1/completions", json=asked)
            rest = list(lines)
        assert process.wait(200) == 0
    finally:
        process.kill()
    assert health.status_code == 503 and health.json() == {"status": "draining"}
    assert refused.status_code == 503 and "retry-after" in refused.headers
    assert rest[-2] == "data: [DONE]" and '"length"' in rest[-4]
