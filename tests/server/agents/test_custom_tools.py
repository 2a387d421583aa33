"""Tools that are no functions: custom ones and namespaces, as models call them and as clients get the calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import openai
import pytest

from support.servers.api_prompts import job, prompt
from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.openai.custom_input import CustomInput, custom_input
from trigraph.runtime.server.settings import Settings

PATCH = '*** Begin Patch\n+  "a\\b" é \U0001f600\n*** End Patch'
GRAMMAR = 'start: "*** Begin Patch\\n" line+ "*** End Patch"\nline: /\\+[^\\n]*/ "\\n"'
FORMAT = {"type": "grammar", "syntax": "lark", "definition": GRAMMAR}
APPLY = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": FORMAT}
CHAT_APPLY = {
    "type": "custom",
    "custom": {
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": GRAMMAR}},
    },
}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [
        {"type": "function", "name": "spawn", "description": "Starts one.", "parameters": {"type": "object"}},
        {"type": "custom", "name": "tell"},
    ],
}


def call(name: str, **arguments: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


@contextmanager
def client_of(reply: str, template: str = PLAIN_TEMPLATE) -> Iterator[Any]:
    with serving(replying(reply, template=template)) as address:
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def service() -> ServedModel:
    return ServedModel(replying("", template=PLAIN_TEMPLATE), Settings())


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.slow), True])
def test_calls_come_back_as_the_tools_were_named(stream: bool) -> None:
    reply = "\n".join([call("apply_patch", input=PATCH), call("agents__spawn"), call("agents__tell", input="go")])
    asked: dict[str, Any] = {"model": "m", "input": "Hi", "tools": [APPLY, AGENTS], "extra_body": {"top_k": 1}}
    with client_of(reply) as client:
        response = client.responses.create(**asked, stream=stream)
        if stream:
            events = [*response]
            response = events[-1].response
            deltas = [event for event in events if event.type == "response.custom_tool_call_input.delta"]
            done = [event.input for event in events if event.type == "response.custom_tool_call_input.done"]
            assert "".join(event.delta for event in deltas if event.output_index == 0) == PATCH
            assert done == [PATCH, "go"]
            added = [event.item for event in events if event.type == "response.output_item.added"]
            assert [item.type for item in added] == ["custom_tool_call", "function_call", "custom_tool_call"]
    patch, spawn, tell = response.output
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "apply_patch", PATCH)
    assert (spawn.type, spawn.name, spawn.namespace, spawn.arguments) == ("function_call", "spawn", "agents", "{}")
    assert (tell.type, tell.name, tell.namespace, tell.input) == ("custom_tool_call", "tell", "agents", "go")
    assert {item.status for item in response.output} == {response.status} == {"completed"}
    assert len({item.call_id for item in response.output}) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_custom_calls_of_chat_completions(stream: bool) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [CHAT_APPLY]}
    with client_of("So.\n" + call("apply_patch", input=PATCH)) as client:
        if stream:
            with client.chat.completions.create(**asked, extra_body={"top_k": 1}, stream=True) as chunks:
                deltas = [chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices]
            calls = [delta[0] for delta in deltas if delta]
            assert calls[0].type == "custom" and calls[0].id and calls[0].custom["name"] == "apply_patch"
            assert "".join(one.custom["input"] for one in calls) == PATCH
            return
        choice = client.chat.completions.create(**asked, extra_body={"top_k": 1}).choices[0]
    (made,) = choice.message.tool_calls
    assert (made.type, made.custom.name, made.custom.input) == ("custom", "apply_patch", PATCH)
    assert choice.finish_reason == "tool_calls" and choice.message.content == "So."


def test_the_model_is_told_of_them(service: ServedModel) -> None:
    text = prompt(service, "/v1/responses", {"input": "Hi", "tools": [APPLY, AGENTS]})
    tools = text.removeprefix("<|tools|>").partition("<|end|>")[0]
    decoder, found = json.JSONDecoder(), []
    while tools:
        tool, end = decoder.raw_decode(tools)
        found.append(tool["function"])
        tools = tools[end:]
    patch, spawn, tell = found
    assert [*patch] == ["name", "description", "parameters"] and patch["parameters"]["required"] == ["input"]
    assert patch["description"] == f"Edits files.\n\nThe input follows this lark grammar:\n\n{GRAMMAR}"
    assert (spawn["name"], spawn["description"]) == ("agents__spawn", "Other agents.\n\nStarts one.")
    assert (tell["name"], tell["parameters"]) == ("agents__tell", patch["parameters"])
    chat = prompt(
        service, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "tools": [CHAT_APPLY]}
    )
    assert chat == prompt(service, "/v1/responses", {"input": "Hi", "tools": [APPLY]})


def test_calls_in_a_history(service: ServedModel) -> None:
    """Before, they were dropped."""
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": PATCH, "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "Done."},
        {"type": "function_call", "call_id": "2", "name": "spawn", "namespace": "agents", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "A"}]},
    ]
    text = prompt(service, "/v1/responses", {"input": items})
    assert f"<function=apply_patch>{json.dumps({'input': PATCH}, ensure_ascii=False)}" in text
    assert "<|tool|>Done.<|end|>" in text and "<function=agents__spawn>{}" in text and "<|tool|>A<|end|>" in text
    custom = {"id": "1", "type": "custom", "custom": {"name": "apply_patch", "input": PATCH}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "1", "content": "Done."},
    ]
    assert prompt(service, "/v1/chat/completions", {"messages": messages}) == prompt(
        service, "/v1/responses", {"input": items[:3]}
    )


# tool_choice, and the function that a call must name
CHOICES: list[tuple[Any, str]] = [
    ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
    ({"type": "function", "name": "spawn", "namespace": "agents"}, "agents__spawn"),
    ({"type": "function", "name": "spawn"}, "agents__spawn"),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "tell"}]}, "agents__tell"),
]


@pytest.mark.parametrize(("wanted", "name"), CHOICES)
def test_a_call_that_must_be_made(service: ServedModel, wanted: Any, name: str) -> None:
    (generation,) = job(
        service, "/v1/responses", {"input": "Hi", "tools": [APPLY, AGENTS], "tool_choice": wanted}
    ).generations
    grammar = generation.request.options.constraint.grammar()
    assert f"<function={name}>" in grammar and grammar.count("<function=") == 1


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_an_input_keeps_to_its_grammar(choice: str) -> None:
    """The model wants to write a line that the grammar has not."""
    reply = call("apply_patch", input="*** Begin Patch\n-no\n*** End Patch")
    asked: dict[str, Any] = {"model": "m", "input": "Hi", "tools": [APPLY], "tool_choice": choice}
    with client_of(reply) as client:
        response = client.responses.create(**asked, max_output_tokens=120, extra_body={"top_k": 1})
    assert response.output[0].input.startswith("*** Begin Patch\n+")


# What Anthropic's server adds to a message by tools of its own.
SEARCHED = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rain"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]},
    {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": {"type": "code_execution_result"}},
    {"type": "compaction", "content": "It rained."},
    {"type": "text", "text": "It rains.", "citations": [{"type": "web_search_result_location"}]},
]
QUESTION = {"role": "user", "content": "Still?"}


def test_what_is_ignored_is_said() -> None:
    tools = [{"type": "web_search"}, {"type": "local_shell"}, APPLY, APPLY]
    items = [
        {"type": "web_search_call", "id": "1"},
        {"type": "shell_call_output", "call_id": "2", "output": [{"stdout": "a", "outcome": {"type": "exit"}}]},
        {"type": "computer_call_output", "call_id": "3", "output": {"type": "computer_screenshot"}},
        {"role": "user", "content": "Hi"},
    ]
    with serving(replying("Yes.", template=PLAIN_TEMPLATE)) as address:
        answer = httpx.post(f"{address}/v1/responses", json={"input": items, "tools": tools, "top_k": 1})
        sentences = [
            "tools of type 'web_search' are ignored",
            "tools of type 'local_shell' are ignored",
            "the tool 'apply_patch' is given twice; the first is used",
            "input items of type 'web_search_call' are ignored",
            "input items of type 'shell_call_output' are ignored",
            "input items of type 'computer_call_output' are ignored",
        ]
        assert answer.json()["warnings"] == json.loads(answer.headers["X-Trigraph-Warnings"]) == sentences
        messages: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "top_k": 1}
        search = {"type": "web_search_20250305", "name": "web_search"}
        answer = httpx.post(f"{address}/v1/messages", json={**messages, "tools": [search]})
        assert answer.json()["warnings"] == ["tools of type 'web_search_20250305' are ignored"]
        told = {**messages, "messages": [*messages["messages"], {"role": "assistant", "content": SEARCHED}, QUESTION]}
        answer = httpx.post(f"{address}/v1/messages", json=told)
        kinds = ("server_tool_use", "web_search_tool_result", "code_execution_tool_result", "compaction")
        assert answer.json()["warnings"] == [f"blocks of type '{kind}' are ignored" for kind in kinds]
        assert answer.json()["content"][0]["text"] == "Yes."
        result = {"type": "tool_result", "tool_use_id": "1", "content": {"type": "text"}}
        wrong = {**messages, "messages": [{"role": "user", "content": [result]}]}
        answer = httpx.post(f"{address}/v1/messages", json=wrong)
        assert "content[0].content is {'type': 'text'}; give a text or blocks" in answer.json()["error"]["message"]
        answer = httpx.post(f"{address}/v1/chat/completions", json={**messages, "tools": [{"type": "web_search"}]})
        assert answer.json()["warnings"] == ["tools of type 'web_search' are ignored"]


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ({"type": "custom", "name": "a b"}, "names of tools have"),
        ({"type": "namespace", "name": "a b", "tools": [{"type": "custom", "name": "c"}]}, "names of tools have"),
        ({**APPLY, "format": {**FORMAT, "syntax": "gbnf"}}, "lark or regex"),
        ({**APPLY, "format": {**FORMAT, "syntax": ["lark"]}}, "lark or regex"),
        ({**APPLY, "format": {"type": "grammar", "grammar": "lark"}}, "lark or regex"),
        ({**APPLY, "format": {**FORMAT, "definition": None}}, "a definition"),
        ({**APPLY, "format": {**FORMAT, "definition": "start: ("}}, "the tool 'apply_patch': the grammar"),
        ({**APPLY, "format": {**FORMAT, "syntax": "regex", "definition": "("}}, "the regular expression"),
    ],
)
def test_a_tool_that_cannot_be_used(service: ServedModel, tool: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError, match=text):
        prompt(service, "/v1/responses", {"input": "Hi", "tools": [tool]})


@pytest.mark.parametrize("tools", [5, "w", {"name": "w"}])
def test_tools_within_are_a_list(service: ServedModel, tools: object) -> None:
    for asked in (
        {"tools": [{"type": "namespace", "name": "n", "tools": tools}]},
        {"tools": [APPLY], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": tools}},
    ):
        with pytest.raises(ApiError, match="give a list"):
            prompt(service, "/v1/responses", {"input": "Hi", **asked})


def test_a_probe_without_input_is_answered() -> None:
    with client_of("Yes.") as client:
        probes: tuple[dict[str, Any], ...] = ({"input": []}, {"input": [], "instructions": "Be brief."}, {"input": ""})
        for asked in probes:
            assert client.responses.create(model="m", **asked, extra_body={"top_k": 1}).output_text == "Yes."


# The JSON of a call's arguments, and the input that it stands for.
INPUTS = {
    "": "",
    "{": "",
    "{}": "",
    '{"input": ""}': "",
    '{"input": "a\\n\\u00e9\\"\\\\"}': 'a\né"\\',
    '{"input": "\\ud83d\\ude00!"}': "\U0001f600!",
    '{"input": "\\ud83d!"}': "\ufffd!",
    '{"input": "\\ude00\\ud83d\\u0041"}': "\ufffd\ufffdA",
    '{"input": "cut \\u00': "cut ",
    '{"input": "cut \\': "cut ",
    '{"patch": "a", "input": "b"}': "a",
    ' { "input" : "a" } ': "a",
    '{"input": {"a": [1, "é"]}}': '{"a": [1, "é"]}',
    '{"input": ["\\ud83d"]}': '["\ufffd"]',
    '{"input": 3}': "3",
    '{"input": 3': "",
    '{"input": "tab\there"}': "tab\there",
}


@pytest.mark.parametrize("arguments", INPUTS)
def test_inputs(arguments: str) -> None:
    assert custom_input(arguments) == INPUTS[arguments]
    reader = CustomInput()
    assert "".join(map(reader.push, arguments)) + reader.finish() == INPUTS[arguments]
