"""Conversations in the forms of three APIs, and their streamed replies as one kind of message: OpenAI's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx2 as httpx

Message = dict[str, Any]


@dataclass
class Reply:
    """A message, and the counts and the time that came with it."""

    message: Message
    prompt: int = 0
    cached: int = 0
    first: float = 0.0
    """Seconds until something of it was there."""

    @property
    def said(self) -> tuple[str, str, list[tuple[str, str]]]:
        """All but ids."""
        calls = [call["function"] for call in self.message.get("tool_calls", ())]
        texts = self.message.get("reasoning_content", ""), self.message["content"]
        return *texts, [(call["name"], call["arguments"]) for call in calls]


@dataclass
class _Parts:
    """What has come of a reply."""

    texts: dict[str, str] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)
    """Id, name and arguments."""
    prompt: int = 0
    cached: int = 0

    def add(self, kind: str, text: str | None) -> bool:
        """More of a text; whether there is any."""
        self.texts[kind] = self.texts.get(kind, "") + (text or "")
        return bool(text)

    def message(self) -> Message:
        """All of it."""
        thought, content = self.texts.get("reasoning", ""), self.texts.get("content", "")
        found: Message = {"role": "assistant", "content": content}
        if thought:
            found["reasoning_content"] = thought
        if self.calls:
            found["tool_calls"] = [
                {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
                for number, name, arguments in self.calls
            ]
        return found


def ask(address: str, api: str, body: dict[str, Any]) -> Reply:
    """Sends a request, whose reply is streamed."""
    path, _, take = APIS[api]
    parts, first, started = _Parts(), 0.0, time.perf_counter()
    with httpx.stream("POST", f"{address}{path}", json=body, timeout=600) as stream:
        if stream.status_code != 200:
            raise SystemExit(f"{path}: {stream.read().decode()[:500]}")
        for event in _events(stream):
            if take(parts, event) and not first:
                first = time.perf_counter() - started
    return Reply(parts.message(), parts.prompt, parts.cached, first)


def _events(stream: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in stream.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def _chat_body(messages: list[Message], tools: list[dict[str, Any]], must_call: bool) -> dict[str, Any]:
    choice = {"tool_choice": "required" if must_call else "auto", "parallel_tool_calls": False} if tools else {}
    return {"messages": messages, "tools": tools, **choice, "stream_options": {"include_usage": True}}


def _chat(parts: _Parts, event: dict[str, Any]) -> bool:
    if usage := event.get("usage"):
        parts.prompt = usage["prompt_tokens"]
        parts.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    came = False
    for choice in event.get("choices", ()):
        delta = choice["delta"]
        came |= parts.add("reasoning", delta.get("reasoning_content")) | parts.add("content", delta.get("content"))
        for call in delta.get("tool_calls") or ():
            if call.get("id"):
                parts.calls.append([call["id"], call["function"]["name"], ""])
            parts.calls[-1][2] += call["function"].get("arguments") or ""
            came = True
    return came


def _messages_body(messages: list[Message], tools: list[dict[str, Any]], must_call: bool) -> dict[str, Any]:
    turns: list[Message] = []
    for message in messages[1:]:
        role, blocks = message["role"], list[dict[str, Any]]()
        if role == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}]
        else:
            if thought := message.get("reasoning_content"):
                blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
            if message["content"]:
                blocks.append({"type": "text", "text": message["content"]})
            for call in message.get("tool_calls", ()):
                given = json.loads(call["function"]["arguments"])
                blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given})
        turns.append({"role": "assistant" if role == "assistant" else "user", "content": blocks})
    given = [{key: tool["function"][of] for key, of in _ANTHROPIC_TOOL.items()} for tool in tools]
    choice = {"tool_choice": {"type": "any" if must_call else "auto", "disable_parallel_tool_use": True}}
    return {"system": messages[0]["content"], "messages": turns, "tools": given, **choice}


_ANTHROPIC_TOOL = {"name": "name", "description": "description", "input_schema": "parameters"}
_DELTAS = {"thinking_delta": ("reasoning", "thinking"), "text_delta": ("content", "text")}


def _messages(parts: _Parts, event: dict[str, Any]) -> bool:
    usage = event.get("usage") or event.get("message", {}).get("usage") or {}
    if "input_tokens" in usage:
        parts.cached = usage.get("cache_read_input_tokens") or 0
        parts.prompt = usage["input_tokens"] + parts.cached
    if event["type"] == "content_block_start" and (block := event["content_block"])["type"] == "tool_use":
        parts.calls.append([block["id"], block["name"], ""])
    if event["type"] != "content_block_delta":
        return False
    delta = event["delta"]
    if delta["type"] == "input_json_delta":
        parts.calls[-1][2] += delta["partial_json"]
    elif delta["type"] in _DELTAS:
        kind, name = _DELTAS[delta["type"]]
        return parts.add(kind, delta[name])
    return True


def _responses_body(messages: list[Message], tools: list[dict[str, Any]], must_call: bool) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for message in messages[1:]:
        if message["role"] == "tool":
            result = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **result})
            continue
        if thought := message.get("reasoning_content"):
            items.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]})
        if message["content"]:
            items.append({"role": message["role"], "content": message["content"]})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]}
            for call in message.get("tool_calls", ())
        ]
    choice = {"tool_choice": "required" if must_call else "auto", "parallel_tool_calls": False}
    given = [{"type": "function", "strict": False, **tool["function"]} for tool in tools]
    return {"instructions": messages[0]["content"], "input": items, "tools": given, **choice}


def _responses(parts: _Parts, event: dict[str, Any]) -> bool:
    if event["type"] in ("response.completed", "response.incomplete"):
        usage = event["response"]["usage"]
        parts.prompt = usage["input_tokens"]
        parts.cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
        for item in event["response"]["output"]:
            if item["type"] == "function_call":
                parts.calls.append([item["call_id"], item["name"], item["arguments"]])
            else:
                text = "".join(part.get("text", "") for part in item.get("content") or ())
                parts.add("reasoning" if item["type"] == "reasoning" else "content", text)
    return str(event["type"]).endswith(".delta")


class Api(NamedTuple):
    """How an API has a request, and what an event of its streams adds to a reply."""

    path: str
    body: Callable[[list[Message], list[dict[str, Any]], bool], dict[str, Any]]
    take: Callable[[_Parts, dict[str, Any]], bool]


APIS = {
    "chat": Api("/v1/chat/completions", _chat_body, _chat),
    "messages": Api("/v1/messages", _messages_body, _messages),
    "responses": Api("/v1/responses", _responses_body, _responses),
}
