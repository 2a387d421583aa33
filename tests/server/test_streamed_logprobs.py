"""Streams whose client reads slowly, which have the log-probabilities of all tokens once, or goes away at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from support.fakes.engine import END, engine_of, scripted
from support.fakes.model import History
from support.servers.scripted import PLAIN_TEMPLATE, replying
from trigraph.runtime.server.answer import EventStream
from trigraph.runtime.server.app import App, ServedModel
from trigraph.runtime.server.job import Job
from trigraph.runtime.server.openai.chat_completions import ChatCompletion
from trigraph.runtime.server.openai.completions import Completion
from trigraph.runtime.server.settings import Settings

CALL = "<tool_call>\n<function=f>\n<parameter=a>\nParis\n</parameter>\n</function>\n</tool_call>"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]
SHARED = {"stream": True, "temperature": 0, "n": 2}
CHAT = {**SHARED, "messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 1}


def choices(make: Callable[[ServedModel, bytes], Job], body: dict[str, Any], reply: str) -> list[dict[str, Any]]:
    """Those of all chunks of a stream, each of which is read after the engine has gone on for a while."""

    async def read() -> list[dict[str, Any]]:
        engine = replying(reply, template=PLAIN_TEMPLATE)
        service = ServedModel(engine, Settings())
        job = make(service, json.dumps(body).encode())
        await job.begin()
        found = []
        async for event in job.events():
            if event.startswith(b"data: {"):
                found += json.loads(event.removeprefix(b"data: "))["choices"]
            await asyncio.sleep(0.01)
        return found

    return asyncio.run(read())


def test_completions() -> None:
    text = "In the beginning God created the heaven and the earth." * 4
    body = {**SHARED, "prompt": "Hello<|assistant|>", "logprobs": 1, "max_tokens": 150}
    found = choices(Completion, body, text)
    for index in range(2):
        mine = [choice for choice in found if choice["index"] == index]
        assert "".join(choice["text"] for choice in mine) == text[:150]
        tokens = [token for choice in mine for token in choice["logprobs"]["tokens"]]
        offsets = [offset for choice in mine for offset in choice["logprobs"]["text_offset"]]
        assert "".join(tokens) == text[:150] and offsets == [*range(150)]


@pytest.mark.parametrize("reply", ["In the beginning. " * 9, f"I ask.\n{CALL}\n{CALL}", CALL])
def test_chat(reply: str) -> None:
    found = choices(ChatCompletion, {**CHAT, "tools": TOOLS}, reply)
    for index in range(2):
        mine = [choice for choice in found if choice["index"] == index]
        tokens = [entry["token"] for choice in mine if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        assert "".join(tokens) == reply


def test_a_client_that_goes_away_before_its_stream_begins_is_counted() -> None:
    gone = threading.Event()

    def logits(history: History) -> np.ndarray:
        gone.wait()
        return scripted([END], 0)(history)

    async def leave() -> str:
        service = ServedModel(engine_of(logits, context=4096, template=PLAIN_TEMPLATE)[0], Settings())
        job = ChatCompletion(service, json.dumps(CHAT).encode())
        await job.begin()

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await asyncio.Event().wait()

        try:
            await EventStream(App.of(service), job, {}, ExitStack())({"path": "/v1/chat/completions"}, receive, send)
        finally:
            gone.set()
        return App.of(service).metrics_text().decode()

    assert 'finished_reason="abort",model_name="trigraph"} 2.0' in asyncio.run(leave())
