"""Replies that a limit cuts: every API says so, streamed and not, and no cut call looks whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from support.servers.scripted import PLAIN_TEMPLATE, replying, serving

CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
REPLY = f"I look.\n\n{CALL}\n{CALL}"
# What the limit leaves, how many whole calls are in it, and the text of the arguments of one that is cut.
CUTS: dict[str, tuple[str, int, str | None]] = {
    "in text": ("I lo", 0, None),
    "in a tag": ("I look.\n\n<tool", 0, None),
    "before a function": ("I look.\n\n<tool_call>\n<funct", 0, None),
    "behind a function": (REPLY.partition("<parameter")[0], 0, "{"),
    "in a value": (REPLY.partition("me\n")[0], 0, '{"city": "Ro'),
    "in a closing tag": (REPLY.partition("eter>\n</")[0], 0, '{"city": "Rome'),
    "between parameters": (REPLY.partition("</function")[0], 0, '{"city": "Rome"'),
    "behind a whole call": (f"I look.\n\n{CALL}", 1, None),
    "in the next call": (f"I look.\n\n{CALL}\n{CALL.partition('me' + chr(10))[0]}", 1, '{"city": "Ro'),
    "before the end of the reply": (REPLY, 2, None),
}
cuts = pytest.mark.parametrize("cut", CUTS)
streams = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(replying(REPLY, template=PLAIN_TEMPLATE)) as address:
        yield address


def asked(address: str, path: str, stream: bool, **fields: Any) -> Any:
    """The answer, or the events of a stream."""
    answer = httpx.post(address + path, json={"model": "m", "stream": stream, "temperature": 0, **fields}, timeout=100)
    assert answer.status_code == 200, answer.text
    if not stream:
        return answer.json()
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check(cut: str, content: str, arguments: list[str]) -> None:
    """Whole calls have whole arguments, and those of the cut one are no JSON."""
    _, whole, rest = CUTS[cut]
    assert content == ("I lo" if cut == "in text" else "I look.")
    assert arguments == ['{"city": "Rome"}'] * whole + ([] if rest is None else [rest])
    if rest is not None:
        with pytest.raises(ValueError):
            json.loads(rest)


@cuts
@streams
def test_chat_completions(address: str, cut: str, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
    answer = asked(address, "/v1/chat/completions", stream, max_tokens=len(CUTS[cut][0]), messages=HELLO, tools=tools)
    if not stream:
        (choice,) = answer["choices"]
        message = choice["message"]
        calls = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
        assert choice["finish_reason"] == "length"
        check(cut, message["content"], calls)
        return
    deltas = [chunk["choices"][0]["delta"] for chunk in answer]
    merged: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        merged[call["index"]] = merged.get(call["index"], "") + call["function"]["arguments"]
    assert answer[-1]["choices"][0]["finish_reason"] == "length"
    check(cut, "".join(delta.get("content") or "" for delta in deltas), list(merged.values()))


@cuts
@streams
def test_responses(address: str, cut: str, stream: bool) -> None:
    left, whole, rest = CUTS[cut]
    tools = [{"type": "function", "name": "weather", "parameters": PARAMETERS}]
    answer = asked(address, "/v1/responses", stream, max_output_tokens=len(left), input="Hello", tools=tools)
    response = answer[-1]["response"] if stream else answer
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    message, *calls = response["output"]
    check(cut, message["content"][0]["text"], [call["arguments"] for call in calls])
    assert [call["status"] for call in calls] == ["completed"] * whole + ["incomplete"] * (rest is not None)
    if stream:
        assert answer[-1]["type"] == "response.incomplete"
        done = [event for event in answer if event["type"] == "response.function_call_arguments.done"]
        assert len(done) == whole
        ends = [event["item"] for event in answer if event["type"] == "response.output_item.done"]
        assert ends == [message, *calls[:whole]]  # clients run a call at this event, whatever its status


@cuts
@streams
def test_messages(address: str, cut: str, stream: bool) -> None:
    left, whole, rest = CUTS[cut]
    tools = [{"name": "weather", "input_schema": PARAMETERS}]
    answer = asked(address, "/v1/messages", stream, max_tokens=len(left), messages=HELLO, tools=tools)
    if not stream:
        text, *calls = answer["content"]
        assert answer["stop_reason"] == "max_tokens"
        assert text["text"] == ("I lo" if cut == "in text" else "I look.")
        assert [call["input"] for call in calls] == [{"city": "Rome"}] * whole + [{}] * (rest is not None)
        return
    kinds = {
        event["index"]: event["content_block"]["type"] for event in answer if event["type"] == "content_block_start"
    }
    found = dict.fromkeys(kinds, "")
    for event in answer:
        if event["type"] == "content_block_delta":
            found[event["index"]] += event["delta"].get("partial_json", "") + event["delta"].get("text", "")
    assert answer[-2]["delta"]["stop_reason"] == "max_tokens"
    check(cut, found.pop(0), list(found.values()))


def test_a_reply_that_ends_with_its_first_call_is_whole(address: str) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
    fields = {"messages": HELLO, "tools": tools, "parallel_tool_calls": False, "max_tokens": len(REPLY) - 10}
    (choice,) = asked(address, "/v1/chat/completions", False, **fields)["choices"]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("tool_calls", 1)


def test_a_stop_string_behind_a_value_leaves_a_whole_call(address: str) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
    for stop, arguments, reason in (
        ("</tool_call>", '{"city": "Rome"}', "tool_calls"),
        ("</function>", '{"city": "Rome"}', "tool_calls"),
        ("me\n", '{"city": "Ro', "stop"),
    ):
        answer = asked(address, "/v1/chat/completions", False, messages=HELLO, tools=tools, stop=stop)
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == reason
        assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == [arguments]


HELLO = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
