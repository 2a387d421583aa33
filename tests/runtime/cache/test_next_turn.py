"""Where later prompts of a conversation part from this one: there checkpoints are made, in tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from support.models.real_vocabulary import real_metadata, real_template
from support.servers.replies import TOOLS
from trigraph.models.tokenizer import tokenizer_json
from trigraph.runtime.cache.next_turn import next_turn_checkpoints, next_turns
from trigraph.runtime.cache.prefix import common_prefix
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow  # the vocabulary is read in seconds

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "What's the weather?"}
RESULT = {"role": "tool", "content": '{"wind": 3}', "tool_call_id": "1"}


def call(**more: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}
    calls = [{"id": "1", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


HISTORIES = {
    "a question": [QUESTION],
    "with a system message": [SYSTEM, QUESTION],
    "a result": [SYSTEM, QUESTION, call(), RESULT],
    "a result after a thought": [SYSTEM, QUESTION, call(reasoning_content="Hm."), RESULT],
    "a long result": [SYSTEM, QUESTION, call(), {**RESULT, "content": "天気は晴れ。<|im_end|>\n\n" * 90}],
    "another turn": [SYSTEM, QUESTION, call(), RESULT, {"role": "assistant", "content": "Calm."}, QUESTION],
}
LATER: dict[str, list[dict[str, Any]]] = {
    "a call": [call(), RESULT],
    "a call after a text": [call(content="I look."), RESULT],
    "a call after a thought": [call(reasoning_content="They ask."), RESULT],
    "an answer": [{"role": "assistant", "content": "Calm."}, QUESTION],
    "an answer after a thought": [{"role": "assistant", "content": "Calm.", "reasoning_content": "Hm."}, QUESTION],
}


@cache
def tokenizer() -> Tokenizer:
    metadata = real_metadata(248320)
    return Tokenizer(tokenizer_json(metadata), [metadata["tokenizer.ggml.eos_token_id"]])


@pytest.mark.parametrize(
    ("name", "later"),
    [
        (name, later)
        for name in ("qwen3", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8")
        for later in LATER
        if not ("nothink" in name and "thought" in later)  # no thought follows a prompt that ends one
    ],
)
@pytest.mark.parametrize("history", HISTORIES)
def test_a_checkpoint_is_where_the_next_prompt_parts(name: str, history: str, later: str) -> None:
    template = ChatTemplate(real_template(name), {})

    def prompt(messages: list[dict[str, Any]]) -> tuple[str, list[int]]:
        text = template.render(messages, tools=TOOLS[:1])
        return text, tokenizer().encode(text)

    messages = HISTORIES[history]
    this, following = prompt(messages), prompt([*messages, *LATER[later]])
    others = template.render_all(next_turns(messages, TOOLS[:1]), tools=TOOLS[:1])
    lengths = next_turn_checkpoints(tokenizer(), this, others)
    common = common_prefix(this[1], following[1])
    assert common in {*lengths, len(this[1])}, (common, sorted(lengths), len(this[1]))
    assert len({*lengths}) <= 4
