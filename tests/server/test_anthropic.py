"""Anthropic's official client, unchanged, against a server in this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from support.servers.scripted import replying, serving

CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "Hello"}],
    "extra_body": {"top_k": 1},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(replying(f"It may rain.\n</think>\n\nI look.\n{CALL}\n{CALL}")) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Any:  # its overloads are for literals
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def check_blocks(message: Any) -> None:
    thinking, text, *calls = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "It may rain.") and thinking.signature
    assert (text.type, text.text) == ("text", "I look.")
    assert [(call.type, call.name, call.input) for call in calls] == 2 * [("tool_use", "weather", {"city": "Paris"})]
    assert calls[0].id != calls[1].id
    assert message.stop_reason == "tool_use" and message.usage.output_tokens > 20
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 10


def test_blocks(client: Any) -> None:
    check_blocks(client.messages.create(**ASKED, tools=[WEATHER]))


def test_blocks_of_a_stream(client: Any) -> None:
    with client.messages.stream(**ASKED, tools=[WEATHER]) as stream:
        check_blocks(stream.get_final_message())


def test_events_come_in_order(client: Any) -> None:
    kinds: list[tuple[str, int | None]] = []
    for event in client.messages.create(**ASKED, tools=[WEATHER], stream=True):
        kind = (event.type, getattr(event, "index", None))
        if not (kinds and kinds[-1] == kind):
            kinds.append(kind)
    blocks = [(f"content_block_{part}", index) for index in range(4) for part in ("start", "delta", "stop")]
    assert kinds == [("message_start", None), *blocks, ("message_delta", None), ("message_stop", None)]


def test_the_async_client(url: str) -> None:
    async def ask() -> Any:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            return await client.messages.create(**ASKED, tools=[WEATHER])  # type: ignore[list-item]

    check_blocks(asyncio.run(ask()))


def test_one_call_at_most(client: Any) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    found = client.messages.create(**ASKED, tools=[WEATHER], tool_choice=choice)
    assert [block.type for block in found.content] == ["thinking", "text", "tool_use"]


@pytest.mark.parametrize(("written", "value"), [("[-1e999, 1]", [-sys.float_info.max, 1]), ('["\\ud83d"]', ["\ufffd"])])
def test_values_that_no_answer_can_have(written: str, value: Any) -> None:
    reply = CALL.replace("Paris", written).replace("=city", "=at")
    tool = {"name": "weather", "input_schema": {"type": "object", "properties": {"at": {"type": "array"}}}}
    with serving(replying(f"</think>\n{reply}")) as address:
        client: Any = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
        found = client.messages.create(**ASKED, tools=[tool])
    assert found.content[-1].input == {"at": value}


def test_ends(client: Any) -> None:
    found = client.messages.create(**{**ASKED, "max_tokens": 5})
    assert found.stop_reason == "max_tokens" and found.usage.output_tokens == 5
    assert [(block.type, block.thinking) for block in found.content] == [("thinking", "It ma")]
    found = client.messages.create(**ASKED, stop_sequences=["nothing", "look"])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "look")
    assert found.content[-1].text == "I "


def test_tools_in_the_history(client: Any) -> None:
    messages = [
        *ASKED["messages"],
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I ask.", "signature": "x"},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "sun"}]},
                {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    counted = client.messages.count_tokens(model="m", messages=messages, tools=[WEATHER])
    found = client.messages.create(**{**ASKED, "messages": messages}, tools=[WEATHER])
    assert found.usage.input_tokens + found.usage.cache_read_input_tokens == counted.input_tokens
    text = "<|assistant|><think>\nI ask.\n</think>\n\nWait.<tool_call>\n<function=weather>"
    assert counted.input_tokens > len(text)


def test_a_message_of_the_assistant_is_continued() -> None:
    with serving(replying("Paris is large.")) as address:
        client: Any = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
        messages = [*ASKED["messages"], {"role": "assistant", "content": "Paris is"}]
        found = client.messages.create(**{**ASKED, "messages": messages}, thinking={"type": "disabled"})
    assert [block.text for block in found.content] == [" large."]


def test_the_billing_line_does_not_change_the_prompt() -> None:
    system = "You are a careful assistant, who never says a word too many."
    with serving(replying("It rains.")) as address:  # which remembers nothing else
        client: Any = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
        for number in ("1a2b3", "4c5d6"):
            billing = f"x-anthropic-billing-header: cc_version=2.1.177.{number}; cch={number};"
            blocks = [{"type": "text", "text": text} for text in (billing, system)]
            found = client.messages.create(**ASKED, system=blocks)
        joined = client.messages.count_tokens(model="m", messages=ASKED["messages"], system=f"{billing}\n{system}")
        alone = client.messages.count_tokens(model="m", messages=ASKED["messages"], system=system)
    assert found.usage.input_tokens == 0 and found.usage.cache_read_input_tokens > len(system)
    assert joined == alone


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"extra_body": {"temperature": -1}}, "temperature is -1"),
        ({"messages": []}, "messages is []"),
        ({"tool_choice": {"type": "any"}}, "tool_choice asks for a tool"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source is missing"),
        ({"messages": [{"role": "user", "content": 5000 * "long"}]}, "prompt is too long"),
    ],
)
def test_errors_have_the_shape_of_the_api(client: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        client.messages.create(**{**ASKED, **changed})
    assert isinstance(raised.value.body, dict) and raised.value.body["type"] == "error"
    assert raised.value.body["error"]["type"] == "invalid_request_error"
    assert message in raised.value.body["error"]["message"]
