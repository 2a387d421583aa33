"""Answers as JSON in pieces: the same bytes, and none of them long."""

from __future__ import annotations

import threading
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from support.servers.scripted import replying, serving
from trigraph.runtime.server.json_pieces import json_bytes, json_pieces
from trigraph.runtime.server.openai.completions import Completion

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(), inner)))
def test_bytes_are_those_of_one_piece(value: Any) -> None:
    assert json_bytes(value) == JSONResponse(value).body


def test_no_piece_is_long() -> None:
    """That of all rows of a model of 5,120 took six seconds, in which no stream went on."""
    rows = [{"object": "embedding", "index": i, "embedding": [0.12345678901] * 100} for i in range(100)]
    entries = [{"token": "a", "top_logprobs": [{"token": "b", "logprob": -1.5}] * 20} for _ in range(1000)]
    for answer in ({"data": rows}, {"choices": [{"logprobs": {"content": entries}}]}, rows):
        assert max(map(len, json_pieces(answer))) < 30_000 < len(json_bytes(answer))


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")] * 20}, ["\ud800"]])
def test_what_is_no_json(value: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON compliant|surrogates"):
        json_bytes(value)


def test_answers_are_put_together_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities of 128 long prompts held all streams up for seconds."""
    threads, written = list[str](), Completion.written

    def seen(job: Completion) -> Any:
        threads.append(threading.current_thread().name)
        return written(job)

    monkeypatch.setattr(Completion, "written", seen)
    with serving(replying("Yes.")) as address:
        assert httpx.post(f"{address}/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
    assert len(threads) == 1 and threads[0].startswith("trigraph-requests")
