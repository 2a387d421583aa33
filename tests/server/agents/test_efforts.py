"""Reasoning efforts and budgets under the names that clients give them."""

from __future__ import annotations

from typing import Any

import pytest

from support.models.real_vocabulary import real_template
from support.servers.api_prompts import job, prompt
from support.servers.scripted import replying
from trigraph.runtime import Engine
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.settings import Settings

ASKED = {"role": "user", "content": "Hi"}
OFF = "<think>\n\n</think>\n\n"
# What Qwen3.8 is told for each effort.
TOLD = {
    "none": OFF,
    "minimal": "set to low",
    "low": "set to low",
    "medium": "<|im_start|>user",
    "high": "set to xhigh",
    "xhigh": "set to xhigh",
    "max": "set to xhigh",
}
PLACES: dict[str, Any] = {
    "/v1/chat/completions": [
        lambda effort: {"messages": [ASKED], "reasoning_effort": effort},
        lambda effort: {"messages": [ASKED], "chat_template_kwargs": {"reasoning_effort": effort}},
    ],
    "/v1/responses": [
        lambda effort: {"input": "Hi", "reasoning": {"effort": effort}},
        lambda effort: {"input": "Hi", "chat_template_kwargs": {"reasoning_effort": effort}},
    ],
    "/v1/messages": [
        lambda effort: {"messages": [ASKED], "max_tokens": 9, "output_config": {"effort": effort}},
        lambda effort: {"messages": [ASKED], "max_tokens": 9, "chat_template_kwargs": {"reasoning_effort": effort}},
    ],
}
FORMS = [(path, i) for path in PLACES for i in range(2)]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return replying("", template=real_template("qwen3_8"))


@pytest.fixture
def service(engine: Engine) -> ServedModel:
    return ServedModel(engine, Settings())


def told(text: str) -> str:
    """Which of `TOLD` a prompt has."""
    return (
        OFF
        if text.endswith(OFF)
        else next(told for told in ("set to low", "set to xhigh", "<|im_start|>user") if told in text)
    )


@pytest.mark.parametrize(("path", "form"), FORMS)
def test_an_effort_becomes_the_nearest(service: ServedModel, path: str, form: int) -> None:
    """Before, all but three were an error 400."""
    prompts = {effort: prompt(service, path, PLACES[path][form](effort)) for effort in TOLD}
    assert {effort: told(text) for effort, text in prompts.items()} == TOLD


def test_the_operators_map_goes_first(engine: Engine) -> None:
    service = ServedModel(engine, Settings(effort_map={"high": "medium", "max": "none", "ultra": "max"}))
    found = {
        effort: told(prompt(service, "/v1/chat/completions", {"messages": [ASKED], "reasoning_effort": effort}))
        for effort in ("low", "high", "max", "ultra", "xhigh")
    }
    expected = {"low": TOLD["low"], "high": TOLD["medium"], "max": OFF, "ultra": TOLD["max"], "xhigh": TOLD["xhigh"]}
    assert found == expected


# The server's variables, the request's, and what the model is told.
LAYERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"reasoning_effort": "high"}, {}, "set to xhigh"),
    ({"reasoning_effort": "high"}, {"reasoning_effort": "minimal"}, "set to low"),
    ({"reasoning_effort": "none"}, {}, OFF),
    ({"reasoning_effort": "none"}, {"enable_thinking": True}, "set to low"),
    ({"enable_thinking": True}, {"reasoning_effort": "none"}, OFF),
    ({"enable_thinking": False}, {"reasoning_effort": "high"}, OFF),
    ({}, {"reasoning_effort": "none", "enable_thinking": True}, "set to low"),
]


@pytest.mark.parametrize(("server", "request_", "expected"), LAYERS)
def test_a_request_goes_before_the_server(
    engine: Engine, server: dict[str, Any], request_: dict[str, Any], expected: str
) -> None:
    service = ServedModel(engine, Settings(template_variables=server))
    body = {"messages": [ASKED], "chat_template_kwargs": request_}
    assert told(prompt(service, "/v1/chat/completions", body)) == expected


@pytest.mark.parametrize("name", ["reasoning_budget", "thinking_token_budget", "thinking_budget"])
def test_names_of_the_budget(service: ServedModel, name: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [ASKED]},
        "/v1/responses": {"input": "Hi"},
    }
    bodies["/v1/messages"] = {"messages": [ASKED], "max_tokens": 9}
    for path, body in bodies.items():
        (generation,) = job(service, path, {**body, name: 7}).generations
        assert generation.request.options.reasoning_budget == 7
