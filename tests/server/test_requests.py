"""Fields with a meaning: each is kept to, or refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from support.marks import slow_after
from support.models.real_vocabulary import real_template
from support.servers.scripted import PLAIN_TEMPLATE, TEMPLATE, replying, serving
from trigraph.runtime import Engine, load
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": MESSAGES, "max_tokens": 40}
CALL = "<tool_call>\n<function=f>\n<parameter=a>\nParis and more"
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
REFUSED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "min_tokens": 5,
        "functions": [{"name": "f"}],
        "prompt_logprobs": 1,
        "use_beam_search": True,
        "modalities": ["audio"],
        "post_sampling_probs": True,
        "top_k": 2**70,
        "repeat_last_n": 2**70,
        "stop_token_ids": [10**6],
    },
    "/v1/completions": {"best_of": 3, "prompt_logprobs": 1, "min_tokens": 1},
    "/v1/responses": {"prompt_logprobs": 1, "min_tokens": 1},
}


@pytest.fixture(scope="module")
def client(tiny_package: Path) -> Iterator[httpx.Client]:
    template = ChatTemplate(PLAIN_TEMPLATE, {"eos_token": "\n"})
    engine = Engine(replace(load(tiny_package, threads=1).model, template=template))
    with serving(engine, Settings(port=0)) as address, httpx.Client(base_url=address, timeout=60) as made:
        yield made


def chat(client: httpx.Client, **fields: Any) -> Any:
    response = client.post("/v1/chat/completions", json={**CHAT, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, fields in REFUSED.items() for name in fields])
def test_what_cannot_be_kept_to_is_refused(client: httpx.Client, path: str, name: str) -> None:
    bodies: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": "Hi"}, "/v1/responses": {"input": "Hi"}}
    body = bodies.get(path, CHAT)
    response = client.post(path, json={**body, name: REFUSED[path][name]})
    assert response.status_code == 400 and name in response.json()["error"]["message"], response.text
    neutral = client.post(path, json={**body, "max_tokens": 1, "min_tokens": 0, "functions": [], "include": []})
    assert neutral.status_code == 200


def test_stop_tokens_are_not_too_many(client: httpx.Client) -> None:
    """Each choice has a set of them: of 128, those of a large vocabulary took two gigabytes."""
    chat(client, stop_token_ids=[1] * 1000, max_tokens=1)
    response = client.post("/v1/chat/completions", json={**CHAT, "stop_token_ids": [1] * 1001})
    assert response.status_code == 400 and "give at most 1,000" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["red", 'a "b"', "c|d"]}}, r'red|a "b"|c\|d'),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"structured_outputs": {"json": {"enum": [7]}}}, "7"),
        ({"structured_outputs": {"json": '{"enum": [7]}'}}, "7"),
        ({"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}}, "yes|no"),
        ({"structured_outputs": {"json_object": True}}, r"(?s)\{.*"),
        ({"guided_choice": ["red", "blue"]}, "red|blue"),
        ({"guided_regex": "x+y", "max_tokens": 400}, "x+y?"),
        ({"guided_json": {"enum": ["z"]}}, '"z"'),
        ({"guided_grammar": 'start: "ok"'}, "ok"),
    ],
)
def test_forms_under_vllms_names(client: httpx.Client, fields: dict[str, Any], pattern: str) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")
    found = chat(client, **fields)["message"]["content"]
    assert re.fullmatch(pattern, found), found


def test_one_form_at_most(client: httpx.Client) -> None:
    for fields in (
        {"guided_regex": "a", "json_schema": {"type": "object"}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    ):
        response = client.post("/v1/chat/completions", json={**CHAT, **fields})
        assert response.status_code == 400 and "one of them" in response.json()["error"]["message"]


def test_stop_tokens_and_lists_of_biases(client: httpx.Client) -> None:
    asked = {"prompt": "In the beginning", "n_predict": 20, "temperature": 0, "return_tokens": True}
    ids = client.post("/completion", json=asked).json()["tokens"]
    stopped = client.post("/completion", json={**asked, "stop_token_ids": [ids[4]]}).json()
    assert stopped["tokens"] == ids[: ids.index(ids[4])] and stopped["stop_type"] == "eos"
    for biases in ([[ids[0], False]], [[ids[0], -1e9]], {str(ids[0]): -1e9}):
        found = client.post("/completion", json={**asked, "logit_bias": biases, "n_predict": 1}).json()["tokens"]
        assert found != ids[:1]
    wine = client.post("/tokenize", json={"content": " wine"}).json()["tokens"]
    forced = client.post("/completion", json={**asked, "logit_bias": [[" wine", 100]], "n_predict": 3}).json()["tokens"]
    assert forced and set(forced) <= set(wine)
    for wrong in ([[1, True]], [[1]], [["a", "b"]], [[10**9, 1]], {"": 1}):
        assert client.post("/completion", json={**asked, "logit_bias": wrong}).status_code == 400


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOLS[1]]}}, "g"),
        ({"type": "function", "function": {"name": "f"}}, "f"),
    ],
)
def test_allowed_tools(client: httpx.Client, choice: Any, called: str) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")
    found = chat(client, tools=TOOLS, tool_choice=choice, max_tokens=200, parallel_tool_calls=False)
    assert found["message"]["tool_calls"][0]["function"]["name"] == called
    if choice["type"] == "allowed_tools":
        items = [tool["function"] | {"type": "function"} for tool in TOOLS]
        wanted = {"type": "allowed_tools", "mode": "required", "tools": items[1:]}
        asked = {"input": "Hi", "tools": items, "tool_choice": wanted, "max_output_tokens": 200}
        output = client.post("/v1/responses", json={**asked, "parallel_tool_calls": False}).json()["output"]
        assert [item["name"] for item in output if item["type"] == "function_call"] == ["g"]


@pytest.mark.parametrize("name", ["my tool", "a<b", 'a"b', "a\\b", ""])
def test_names_that_no_call_can_have(client: httpx.Client, name: str) -> None:
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {**CHAT, "tools": [{"type": "function", "function": {"name": name}}]},
        "/v1/responses": {"input": "Hi", "tools": [{"type": "function", "name": name}]},
        "/v1/messages": {**CHAT, "tools": [{"name": name, "input_schema": {}}]},
    }
    if not name:
        del bodies["/v1/responses"]  # left out there, as tools are that are no functions
    for path, body in bodies.items():
        response = client.post(path, json=body)
        assert response.status_code == 400 and "names of tools" in response.json()["error"]["message"], response.text


@pytest.mark.parametrize("arguments", slow_after(2, ["", "null", '{"a": "Par', "[1]", None, "nonsense", {"a": 1}]))
@pytest.mark.parametrize("template", ["qwen3_6", "qwen3", "tests"])
def test_a_bad_call_in_the_history_does_not_end_a_conversation(template: str, arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    source = PLAIN_TEMPLATE if template == "tests" else real_template(template)
    with serving(replying("It rains.", template=source)) as address:
        response = httpx.post(f"{address}/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
        assert response.status_code == 200, response.text
        items = [
            {"role": "user", "content": "Hi"},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments},
            {"type": "function_call_output", "call_id": "1", "output": "rain"},
        ]
        response = httpx.post(f"{address}/v1/responses", json={"input": items})
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("role", ["system", "developer"])
def test_late_system_messages(role: str) -> None:
    late = [*MESSAGES, {"role": "assistant", "content": "Ho"}, {"role": role, "content": "Be brief."}, *MESSAGES]
    first = [{"role": "system", "content": "Be kind.\n\nBe brief."}, *late[:2], *MESSAGES]
    given = [{"role": role, "content": "Be kind."}, *late]
    with serving(replying("", template=real_template("qwen3_6"))) as address:
        found = [
            httpx.post(f"{address}/tokenize", json={"messages": messages}).json()["tokens"]
            for messages in (given, first)
        ]
    assert found[0] == found[1]
    with serving(replying("", template=TEMPLATE)) as address:  # a template that takes them has them in their place
        text = httpx.post(f"{address}/apply-template", json={"messages": given}).json()["prompt"]
    assert text.index("<|assistant|>Ho") < text.index("<|system|>Be brief.")


def test_errors_of_templates_name_the_field() -> None:
    source = "{{ raise_exception('No such role.') }}"
    with serving(replying("", template=source)) as address:
        for path, body, param in (
            ("/v1/chat/completions", CHAT, "messages"),
            ("/v1/responses", {"input": "Hi"}, "input"),
            ("/apply-template", CHAT, "messages"),
        ):
            error = httpx.post(f"{address}{path}", json=body).json()["error"]
            assert error["param"] == param and "No such role." in error["message"] and "--" not in error["message"]
        error = httpx.post(f"{address}/v1/messages", json=CHAT).json()["error"]
        assert error["type"] == "invalid_request_error" and "No such role." in error["message"]
        wrong = {**CHAT, "chat_template_kwargs": {"messages": 1}}
        error = httpx.post(f"{address}/v1/chat/completions", json=wrong).json()["error"]
        assert "messages is reserved" in error["message"]


def test_a_model_without_a_template_chats(tiny_package: Path) -> None:
    engine: Engine = load(tiny_package, threads=1)
    with serving(engine, Settings(port=0)) as address, httpx.Client(base_url=address, timeout=60) as client:
        assert chat(client, max_tokens=8)["message"]["content"]
        text = client.post("/apply-template", json=CHAT).json()["prompt"]
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_call_that_is_cut_off_is_told_of() -> None:
    with serving(replying(CALL, template=PLAIN_TEMPLATE)) as address:
        asked = {**CHAT, "tools": TOOLS, "max_tokens": len(CALL) - 5, "temperature": 0}
        choice = httpx.post(f"{address}/v1/chat/completions", json=asked).json()["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "f" and call["function"]["arguments"].startswith('{"a": "Paris')
        assert choice["finish_reason"] == "length"
        tools = [{"name": "f", "input_schema": {"properties": {"a": {"type": "string"}}}}]
        message = httpx.post(f"{address}/v1/messages", json={**asked, "tools": tools}).json()
        assert (message["content"][-1]["name"], message["content"][-1]["input"]) == ("f", {})
        assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("length", range(1, 12))
def test_a_character_that_is_cut_off_is_left_out(length: int) -> None:
    with serving(replying("a\U0001f600b\u00e9c", template=PLAIN_TEMPLATE)) as address:
        asked = {**CHAT, "max_tokens": length, "temperature": 0}
        choice = httpx.post(f"{address}/v1/chat/completions", json=asked).json()["choices"][0]
    expected = "a\U0001f600b\u00e9c".encode()[:length].decode(errors="ignore")
    assert choice["message"]["content"] == expected


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_an_echoed_prompt(client: httpx.Client, stream: bool) -> None:
    ids = client.post("/tokenize", json={"content": "In the beginning"}).json()["tokens"]
    body: dict[str, Any] = {"prompt": [ids, [20, 300, 7]], "echo": True, "logprobs": 2, "max_tokens": 4, "n": 2}
    response = client.post("/v1/completions", json={**body, "temperature": 0, "stream": stream})
    found: list[dict[str, list[Any]]] = [{} for _ in range(4)]
    texts = [""] * 4
    lines = response.text.splitlines() if stream else [f"data: {response.text}"]
    for line in lines:
        for choice in json.loads(line.removeprefix("data: "))["choices"] if line.startswith("data: {") else ():
            texts[choice["index"]] += choice["text"]
            for name, values in (choice["logprobs"] or {}).items():
                found[choice["index"]].setdefault(name, []).extend(values)
    for index, logprobs in enumerate(found):
        assert "".join(logprobs["tokens"]) == texts[index]
        assert logprobs["token_logprobs"][0] is None and max(logprobs["token_logprobs"][1:]) < 0
        assert logprobs["top_logprobs"][0] is None and all(len(top) == 2 for top in logprobs["top_logprobs"][1:])
        lengths = [0, *map(len, logprobs["tokens"])]
        assert logprobs["text_offset"] == [*accumulate(lengths)][:-1]
    assert len(found[2]["tokens"]) == 3 + 4 and found[2] == found[3]
    asked = {"prompt": ids, "n_predict": 4, "temperature": 0, "return_tokens": True}
    whole = [*ids, *client.post("/completion", json=asked).json()["tokens"]]
    again = client.post("/v1/completions", json={**body, "prompt": [whole], "n": 1, "max_tokens": 0}).json()
    assert again["choices"][0]["logprobs"]["token_logprobs"] == found[0]["token_logprobs"]
    assert again["usage"]["completion_tokens"] == 0
