"""A request whose grammar would end the process is refused, and nobody waits for those that take long."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest

from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from support.texts.hostile_grammars import GRAMMARS, chain, fan
from trigraph.runtime.sampling import trial
from trigraph.runtime.sampling.guidance import trials
from trigraph.runtime.sampling.trial import Verdict

pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
HOSTILE = fan("items")
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": HOSTILE}}}
FUNCTION = {"type": "function", "function": TOOL}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": HOSTILE}}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "response_format": ("/v1/chat/completions", {**CHAT, "response_format": FORMAT}),
    "a chain": ("/v1/chat/completions", {**CHAT, "guided_json": chain("items")}),
    "tools": ("/v1/chat/completions", {**CHAT, "tools": [FUNCTION], "tool_choice": "required"}),
    "guided_grammar": ("/v1/chat/completions", {**CHAT, "guided_grammar": GRAMMARS["%json within reach"]}),
    "prompts": ("/v1/completions", {"prompt": "Hi", "response_format": FORMAT}),
    "responses": (
        "/v1/responses",
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": HOSTILE}}},
    ),
    "responses' tools": (
        "/v1/responses",
        {"input": "Hi", "tools": [{"type": "function", **TOOL}], "tool_choice": "required"},
    ),
    "messages": (
        "/v1/messages",
        {**CHAT, "tools": [{"name": "f", "input_schema": TOOL["parameters"]}], "tool_choice": {"type": "any"}},
    ),
    "json_schema": ("/completion", {"prompt": "Hi", "json_schema": HOSTILE}),
    "grammar": ("/completion", {"prompt": "Hi", "grammar": GRAMMARS["rules"]}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        serving(replying("Hello", template=PLAIN_TEMPLATE, context=400_000)) as address,
        httpx.Client(base_url=address, timeout=300) as made,
    ):
        yield made


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_grammar_is_refused(client: httpx.Client, name: str) -> None:
    path, body = REQUESTS[name]
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert "cannot be used: " in response.json()["error"]["message"]
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_ordinary_requests_are_answered_while_hostile_ones_wait(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, tried = threading.Event(), trial._Lane.tried

    def held(lane: Any, request: dict[str, Any]) -> Verdict | None:
        if "hostile" in request["grammar"] and lane is trials()._slow:
            return Verdict(None) if free.wait(400) else None
        return tried(lane, request)

    monkeypatch.setattr(trial._Lane, "tried", held)

    def ask(number: int) -> int:
        schema = {"const": number, "description": "hostile " * 5000}
        return client.post("/v1/chat/completions", json={**CHAT, "guided_json": schema}).status_code

    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}]
    small = {"guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    with ThreadPoolExecutor(32) as threads:
        try:
            hostile = [threads.submit(ask, number) for number in range(32)]
            deadline = time.monotonic() + 200
            while len(trials()._slow.semaphore._waiting) < 30 and time.monotonic() < deadline:
                time.sleep(0.01)
            for fields in ({}, small, {"tools": tools, "tool_choice": "required"}):
                assert client.post("/v1/chat/completions", json={**CHAT, **fields}).status_code == 200
            assert len(trials()._slow.semaphore._waiting) == 30 and not any(request.done() for request in hostile)
        finally:
            free.set()
        assert {request.result() for request in hostile} == {200}


def test_too_many_that_wait_are_sent_away(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trigraph.runtime.sampling.semaphore._MOST_WAITING", 0)
    function = {"name": "f", "parameters": {"properties": {"a": {"const": 4711}}}}
    tools = [{"type": "function", "function": function}]
    for fields in ({"guided_json": {"const": 4711}}, {"tools": tools, "tool_choice": "required"}):
        response = client.post("/v1/chat/completions", json={**CHAT, **fields})
        assert response.status_code == 429 and "try again later" in json.loads(response.text)["error"]["message"]
