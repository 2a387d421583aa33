"""The chat templates of Qwen's models, as transformers renders them, and replies as they write them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from support.models.real_vocabulary import real_template
from support.servers.replies import TOOLS
from trigraph.runtime.text.reply import assistant_message
from trigraph.runtime.text.reply_parser import ReplyFormat
from trigraph.runtime.text.template import ChatTemplate

XML, JSON = ReplyFormat(True, "xml"), ReplyFormat(True, "json")
# Name, format, and whether the prompt opens a thought, and does when told not to.
TEMPLATES = {
    "qwen3": (JSON, False, False),
    "qwen3_training": (JSON, False, False),
    "qwen3_instruct_2507": (ReplyFormat(False, "json"), False, False),
    "qwen3_5_think": (XML, True, False),
    "qwen3_5_nothink": (XML, False, False),
    "qwen3_5_think_training": (XML, True, False),
    "qwen3_6": (XML, True, False),
    "qwen3_8": (XML, True, False),
    "qwen3_8_training": (XML, True, False),
    "qwen2_5": (ReplyFormat(False, "json"), False, False),
}
SYSTEM = {"role": "system", "content": "Be brief — <b>ja</b>."}
QUESTION = {"role": "user", "content": "  What's the weather?\n"}
CALL = {
    "role": "assistant",
    "content": "Let me see.",
    "reasoning_content": "They ask for weather.",
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Ørsta", "days": 2}}}
    ],
}
RESULT = {"role": "tool", "content": '{"wind": 3}', "tool_call_id": "1"}
ANSWER = {"role": "assistant", "content": "Calm.", "reasoning_content": "3 is little."}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "a question": [QUESTION],
    "with a system message": [SYSTEM, QUESTION],
    "a call": [QUESTION, CALL, RESULT],
    "a call, and an answer": [SYSTEM, QUESTION, CALL, RESULT, ANSWER],
    "two turns": [QUESTION, CALL, RESULT, ANSWER, {"role": "user", "content": "And tomorrow?"}],
}
OPTIONS = [{}, {"enable_thinking": False}, {"enable_thinking": True, "preserve_thinking": True}]


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers_does(name: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="transformers is not installed")
    source = real_template(name)
    template = ChatTemplate(source, {})
    cases = itertools.product(CONVERSATIONS.values(), [(), TOOLS[:1]], OPTIONS, [True, False])
    for messages, tools, variables, generate in cases:
        theirs, _ = utils.render_jinja_template(
            conversations=[messages],
            tools=[*tools] or None,
            chat_template=source,
            add_generation_prompt=generate,
            **variables,
        )
        ours = template.render(messages, tools=tools, variables=variables, add_generation_prompt=generate)
        assert ours == theirs[0], (messages, tools, variables)


@pytest.mark.parametrize("name", TEMPLATES)
def test_formats(name: str) -> None:
    template = ChatTemplate(real_template(name), {})
    opened = [
        template.reply_format.thinks(template.render([QUESTION], variables=variables))
        for variables in ({}, {"enable_thinking": False})
    ]
    assert (template.reply_format, *opened) == TEMPLATES[name]


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_template_writes_is_read_back(name: str) -> None:
    """The reply after a prompt, taken out of the rendered history."""
    template = ChatTemplate(real_template(name), {})
    prompt = template.render([QUESTION], tools=TOOLS[:1])
    written = template.render([QUESTION, CALL], tools=TOOLS[:1], add_generation_prompt=False)
    assert written.startswith(prompt) or "nothink" in name
    reply = written.removeprefix(prompt).removesuffix("\n").removesuffix("<|im_end|>")
    if "nothink" in name:  # the prompt ends an empty thought, the history has the real one
        prompt, _, reply = written.removesuffix("<|im_end|>\n").rpartition("<|im_start|>assistant\n")
    parser = template.parser(prompt, TOOLS[:1])
    events = [event for character in reply for event in parser.push(character)]
    message = assistant_message([*events, *parser.finish()])
    assert message["content"] == CALL["content"]
    assert message.get("reasoning_content", "They ask for weather.") == CALL["reasoning_content"]
    assert ("reasoning_content" in message) == template.reply_format.thoughts
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "get_weather",
        {"city": "Ørsta", "days": 2},
    )
