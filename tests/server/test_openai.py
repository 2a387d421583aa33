"""OpenAI's official client, unchanged, against a server in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from support.models.real_vocabulary import real_template
from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.runtime import Engine, JsonSchema, Options, Sampling, load
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.template import ChatTemplate

CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
CALL += "</function>\n</tool_call>"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
MESSAGES = [{"role": "user", "content": "In the beginning"}]


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return Engine(
        replace(load(tiny_package, threads=1).model, template=ChatTemplate(PLAIN_TEMPLATE, {"eos_token": "\n"}))
    )


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine, Settings(model="tiny", port=0)) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def client_of(address: str) -> Any:  # its overloads are for literals
    return OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def chat_text(engine: Engine, options: Options, prompt: str = "In the beginning") -> str:
    return engine.generate(engine.chat_template().render([{"role": "user", "content": prompt}]), options).run()


def test_models(client: Any, engine: Engine) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny" and model.model_dump()["max_model_len"] == engine.context
    assert client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("stream", [False, True])
def test_completions_have_the_text_of_the_engine(client: Any, engine: Engine, stream: bool) -> None:
    options = Options(Sampling(0.9, top_k=40, top_p=0.9, min_p=0.01, seed=7), max_tokens=40)
    asked = dict(model="tiny", prompt="In the beginning", max_tokens=40, temperature=0.9, top_p=0.9, seed=7)
    found = client.completions.create(**asked, extra_body={"top_k": 40, "min_p": 0.01}, stream=stream)
    text = "".join(chunk.choices[0].text for chunk in found) if stream else found.choices[0].text
    assert text == engine.generate("In the beginning", options).run()


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_a_seed_of_its_own(client: Any, engine: Engine, stream: bool) -> None:
    found = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=24, seed=11, n=3, stream=stream, temperature=1
    )
    texts = [""] * 3
    if stream:
        for chunk in found:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    else:
        texts = [choice.message.content for choice in found.choices]
    assert texts == [chat_text(engine, Options(Sampling(1.0, seed=11 + i), max_tokens=24)) for i in range(3)]


def test_usage_in_a_stream_and_reused_prompts(client: Any) -> None:
    for _ in range(2):
        *chunks, last = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "And God said unto Noah"}],
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
    assert not last.choices and all(chunk.usage is None for chunk in chunks)
    assert last.usage is not None and last.usage.completion_tokens == 16
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens
    assert chunks[-1].choices[0].finish_reason == "length"


def test_stop_strings(client: Any, engine: Engine) -> None:
    options = Options(Sampling(temperature=0), max_tokens=60)
    text = chat_text(engine, options)
    stop = text[20:24]
    found = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=60, temperature=0, stop=stop)
    assert found.choices[0].message.content == text[: text.index(stop)] and found.choices[0].finish_reason == "stop"


def test_log_probabilities(client: Any) -> None:
    asked = dict(model="tiny", messages=MESSAGES, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3)
    whole = client.chat.completions.create(**asked)
    tokens = whole.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == whole.choices[0].message.content
    for token in tokens:  # greedy: the token is the most likely one
        assert token.logprob == token.top_logprobs[0].logprob < 0 and len(token.top_logprobs) == 3
        assert sorted(token.top_logprobs, key=lambda top: -top.logprob) == token.top_logprobs
    streamed = [
        token
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert streamed == tokens
    plain = client.completions.create(model="tiny", prompt="In the", max_tokens=5, temperature=0, logprobs=2)
    logprobs = plain.choices[0].logprobs
    assert logprobs is not None and "".join(logprobs.tokens or ()) == plain.choices[0].text
    assert logprobs.text_offset == [sum(map(len, (logprobs.tokens or ())[:i])) for i in range(5)]


def test_logit_bias(client: Any, engine: Engine) -> None:
    token = engine.tokenizer.encode(" wine")[0]
    found = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3, temperature=0, logit_bias={str(token): 100}
    )
    assert found.choices[0].message.content == 3 * engine.tokenizer.decode([token])


class Person(BaseModel):
    name: str
    age: int


def test_structured_output(client: Any, engine: Engine) -> None:
    found = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Person, max_tokens=300, temperature=1, seed=1
    )
    schema = json.dumps(openai.lib._pydantic.to_strict_json_schema(Person))
    options = Options(Sampling(1.0, seed=1), max_tokens=300, constraint=JsonSchema(schema))
    assert found.choices[0].message.content == chat_text(engine, options)
    assert isinstance(found.choices[0].message.parsed, Person)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_is_required(client: Any, choice: object) -> None:
    parameters = {"properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    found = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        tools=[tool],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=600,
        seed=2,
        temperature=1,
    )
    (call,) = found.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather" and arguments["city"] in ("Paris", "Rome")
    assert arguments.get("days", 1) in (1, 2) and found.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_and_calls(stream: bool) -> None:
    with serving(replying(f"It may <tool_call> rain.\n</think>\n\nI look.\n{CALL}\n{CALL}")) as address:
        asked = dict(model="m", messages=MESSAGES, tools=[WEATHER], extra_body={"top_k": 1})
        if stream:
            with client_of(address).chat.completions.stream(**asked) as events:
                for _ in events:
                    pass
                found = events.get_final_completion()
        else:
            found = client_of(address).chat.completions.create(**asked)
    message = found.choices[0].message
    assert message.content == "I look." and message.model_dump()["reasoning_content"] == "It may <tool_call> rain."
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == 2 * [{"city": "Paris", "days": 2}]
    assert found.choices[0].finish_reason == "tool_calls"


def test_calls_one_at_a_time_or_none() -> None:
    with serving(replying(f"Hm.\n</think>\n\n{CALL}\n{CALL}")) as address:
        create = client_of(address).chat.completions.create
        asked = dict(model="m", messages=MESSAGES, tools=[WEATHER], extra_body={"top_k": 1})
        one = create(**asked, parallel_tool_calls=False)
        assert len(one.choices[0].message.tool_calls) == 1
        none = create(**asked, tool_choice="none")
        assert none.choices[0].message.tool_calls is None and CALL in none.choices[0].message.content


def test_a_conversation_with_tools_goes_on() -> None:
    messages = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I ask.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "rain"}]},
    ]
    with serving(replying("It rains.", template=PLAIN_TEMPLATE)) as address:
        found = client_of(address).chat.completions.create(
            model="m", messages=messages, tools=[WEATHER], extra_body={"top_k": 1}
        )
    assert found.choices[0].message.content == "It rains." and found.choices[0].finish_reason == "stop"


def test_a_template_is_given_variables() -> None:
    with serving(replying("Yes.")) as address:
        create = client_of(address).chat.completions.create
        for asked in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
            found = create(model="m", messages=MESSAGES, extra_body={"top_k": 1, **asked})
            assert found.choices[0].message.content == "Yes."


def test_thoughts_of_earlier_turns_are_preserved_when_asked() -> None:
    thoughts = {"role": "assistant", "content": "Calm.", "reasoning_content": "Three is little."}
    messages: Any = [MESSAGES[0], thoughts, {"role": "user", "content": "And tomorrow?"}]
    with serving(replying("", template=real_template("qwen3_6"))) as address:
        found = [
            client_of(address).chat.completions.create(
                model="m", messages=messages, max_tokens=1, extra_body={"chat_template_kwargs": variables}
            )
            for variables in ({}, {"preserve_thinking": False}, {"preserve_thinking": True})
        ]
    plain, dropped, preserved = (completion.usage.prompt_tokens for completion in found if completion.usage)
    assert plain == dropped and preserved - plain == len("\nThree is little.\n</think>\n\n") + 1  # <think> is one token


def test_many_at_once(url: str, engine: Engine) -> None:
    async def all_of_them() -> list[str | None]:
        client: Any
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            found = await asyncio.gather(
                *(
                    client.chat.completions.create(model="tiny", messages=MESSAGES, seed=seed, max_tokens=12)
                    for seed in range(32)
                )
            )
        return [completion.choices[0].message.content for completion in found]

    expected = [chat_text(engine, Options(Sampling(seed=seed), max_tokens=12)) for seed in range(32)]
    assert asyncio.run(all_of_them()) == expected
