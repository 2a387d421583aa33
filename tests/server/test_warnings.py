"""What of a request is ignored or not enforced is said, in the answer and in a header."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from support.servers.scripted import PLAIN_TEMPLATE, replying, serving

pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_warnings_stand_in_the_response(path: str) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2}
    asked: dict[str, Any] = {"model": "m", "max_tokens": 20, "json_schema": schema}
    asked |= {"input": "Hi"} if "responses" in path else {"messages": [{"role": "user", "content": "Hi"}]}
    with serving(replying("[1]", template=PLAIN_TEMPLATE)) as address:
        plain = httpx.post(address + path, json=asked)
        streamed = httpx.post(address + path, json={**asked, "stream": True})
        without = httpx.post(address + path, json={**asked, "json_schema": {"type": "array", "maxItems": 1}})
    told = ["uniqueItems at the top of the schema is not enforced"]
    assert plain.json()["warnings"] == told
    assert [json.loads(answer.headers["X-Trigraph-Warnings"]) for answer in (plain, streamed)] == [told, told]
    assert "warnings" not in without.json() and "X-Trigraph-Warnings" not in without.headers


def test_warnings_fit_a_header() -> None:
    """Names in other scripts take six bytes a character there, and clients end the connection above eight kilobytes."""
    properties = {f"{i}{'名' * 100}": {"type": "array", "uniqueItems": True} for i in range(20)}
    asked = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 9,
        "json_schema": {"properties": properties},
    }
    with serving(replying("{}", template=PLAIN_TEMPLATE)) as address:
        answer = httpx.post(address + "/v1/chat/completions", json=asked)
        properties["a" * 5000] = properties.pop(next(iter(properties)))
        assert len(httpx.post(address + "/v1/chat/completions", json=asked).json()["warnings"][-1]) < 1000
    told, header = answer.json()["warnings"], answer.headers["X-Trigraph-Warnings"]
    assert len(told) == 20 and json.loads(header) == told[:9] and len(header) < 6000
