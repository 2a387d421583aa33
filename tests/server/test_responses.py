"""The Responses API: OpenAI's official client, unchanged, against a server in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from support.servers.scripted import PLAIN_TEMPLATE, replying, serving

CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
ASKED: dict[str, Any] = {
    "model": "m",
    "input": "Hello",
    "tools": [{"type": "web_search"}, WEATHER],
    "extra_body": {"top_k": 1},
}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:  # its overloads are for literals
    with serving(replying(f"It may rain.\n</think>\n\nI look.\n{CALL}\n{CALL}")) as address:
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def check_output(response: Any) -> None:
    reasoning, message, *calls = response.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "It may rain.")
    assert (message.type, message.content[0].text) == ("message", response.output_text) == ("message", "I look.")
    assert [json.loads(call.arguments) for call in calls] == 2 * [{"city": "Paris"}]
    assert {item.status for item in response.output} == {response.status} == {"completed"}
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens > 60


def test_items(client: Any) -> None:
    check_output(client.responses.create(**ASKED))


def test_events(client: Any) -> None:
    events = list(client.responses.create(**ASKED, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    check_output(events[-1].response)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    for i, item in enumerate(events[-1].response.output):
        own = [event for event in events if getattr(event, "output_index", None) == i]
        assert (own[0].type, own[-1].type) == ("response.output_item.added", "response.output_item.done")
        assert own[-1].item == item and own[0].item.status == "in_progress"
        deltas = "".join(event.delta for event in own if event.type.endswith(".delta"))
        assert deltas == (item.arguments if item.type == "function_call" else item.content[0].text)


def test_the_stream_helper(client: Any) -> None:
    with client.responses.stream(**ASKED) as stream:
        for _ in stream:
            pass
        check_output(stream.get_final_response())


def test_a_response_that_is_cut_off(client: Any) -> None:
    response = client.responses.create(**ASKED, max_output_tokens=4)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].content[0].text == "It m"
    *_, last = client.responses.create(**ASKED, max_output_tokens=4, stream=True)
    assert last.type == "response.incomplete"


def test_output_goes_back_as_input(client: Any) -> None:
    first = client.responses.create(**ASKED)
    items = [{"role": "user", "content": "Hello"}, *(item.model_dump(exclude_none=True) for item in first.output)]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "sun"} for call in first.output[2:]]
    items.insert(1, {"type": "web_search_call", "id": "ws_1", "status": "completed"})
    second = client.responses.create(**{**ASKED, "input": items}, instructions="Be brief.")
    check_output(second)
    assert second.usage.input_tokens > first.usage.input_tokens + 60


class City(BaseModel):
    name: str


def test_structured_output() -> None:
    with serving(replying('{"name": "Rome"}', template=PLAIN_TEMPLATE)) as address:
        client: Any = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        response = client.responses.parse(model="m", input="Hello", text_format=City, extra_body={"top_k": 1})
    assert response.output_parsed == City(name="Rome")


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"input": [{"role": "boss", "content": "x"}]}, "input[0].role"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_errors_name_the_field(client: Any, changed: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**{**ASKED, **changed})
    assert raised.value.param == param and param.partition("[")[0] in raised.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_of_the_text(stream: bool) -> None:
    said = f"Hm \U0001f600.\n</think>\n\n\U0001f600 Yes \U0001f600, I do.\n{CALL}"
    with serving(replying(said)) as address:
        client: Any = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        asked = {**ASKED, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
        response = client.responses.create(**asked, stream=stream)
        if stream:
            events = [*response]
            response = events[-1].response
            deltas = [event for event in events if event.type == "response.output_text.delta"]
            given = [entry.token for event in deltas for entry in event.logprobs]
            assert given == [entry.token for entry in text_of(response).logprobs]
    part = text_of(response)
    assert part.text == "\U0001f600 Yes \U0001f600, I do."
    assert bytes(byte for entry in part.logprobs for byte in entry.bytes).decode() == part.text
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in part.logprobs)


def text_of(response: Any) -> Any:
    return next(item for item in response.output if item.type == "message").content[0]
