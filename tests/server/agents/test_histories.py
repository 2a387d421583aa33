"""Conversations as clients keep them, whatever they begin and end with, on the templates of Qwen's models."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from support.models.real_vocabulary import real_template
from support.servers.api_prompts import prompt
from support.servers.scripted import replying
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.settings import Settings

TEMPLATES = ("qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8", "qwen3_vl")
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "noon"}
EMPTY_TURN = "<|im_start|>user\n<|im_end|>\n"


@pytest.fixture(scope="module", params=TEMPLATES)
def service(request: pytest.FixtureRequest) -> ServedModel:
    return ServedModel(replying("", template=real_template(request.param), context=100_000), Settings())


@pytest.fixture(scope="module")
def newest() -> ServedModel:
    return ServedModel(replying("", template=real_template("qwen3_8"), context=100_000), Settings())


# Messages, and the turns that Qwen3.8 reads after what it is told of efforts; without a user's, most were an error 400.
CASES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "only a system message": ([SYSTEM], EMPTY_TURN),
    "an answer that is continued": ([SYSTEM, {"role": "assistant", "content": "So"}], EMPTY_TURN),
    "a call after a system message": (
        [SYSTEM, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT],
        EMPTY_TURN + "<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=now>\n</function>\n"
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n",
    ),
    "a result first": (
        [RESULT, {"role": "user", "content": "Go on."}],
        EMPTY_TURN + "<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nGo on.<|im_end|>\n",
    ),
    "a result after a system message": (
        [SYSTEM, RESULT],
        EMPTY_TURN + "<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n",
    ),
    "a user's message stays alone": (
        [SYSTEM, {"role": "user", "content": "Hi"}],
        "<|im_start|>user\nHi<|im_end|>\n",
    ),
    "a function's result": (
        [{"role": "user", "content": "Hi"}, {"role": "function", "name": "now", "content": "noon"}],
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n",
    ),
    "a function's call": (
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
            {"role": "function", "name": "now", "content": "noon"},
        ],
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=now>\n"
        "</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n",
    ),
    "a late system message": (
        [{"role": "assistant", "content": "So"}, SYSTEM, {"role": "assistant", "content": "And"}, RESULT],
        EMPTY_TURN + "<|im_start|>assistant\n<think>\n\n</think>\n\nSo<|im_end|>\n<|im_start|>assistant\n<think>\n\n"
        "</think>\n\nAnd<|im_end|>\n<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_model_reads(newest: ServedModel, name: str) -> None:
    messages, turns = CASES[name]
    text = prompt(newest, CHAT, {"messages": messages})
    _, end, read = text.partition("<|im_end|>\n")  # the system's turn
    assert end and read.rpartition("<|im_start|>assistant\n")[0] == turns


@pytest.mark.parametrize("name", CASES)
def test_every_template_takes_them(service: ServedModel, name: str) -> None:
    assert prompt(service, CHAT, {"messages": CASES[name][0]})


def test_an_empty_turn_is_for_templates_that_want_one() -> None:
    service = ServedModel(replying("", template=real_template("qwen3")), Settings())
    text = prompt(
        service, CHAT, {"messages": [SYSTEM, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT]}
    )
    assert EMPTY_TURN not in text


def test_results_refer_to_tools(newest: ServedModel) -> None:
    result = [{"type": "tool_reference", "tool_name": "grep"}, {"type": "text", "text": "b"}]
    blocks: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "search", "input": {"q": "grep"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": result}]},
    ]
    text = prompt(newest, MESSAGES, {"messages": blocks, "max_tokens": 9})
    assert "<tool_response>\nThe tool grep can be called.\nb\n</tool_response>" in text


# The arguments of a call in a history, and the parameters that the model reads.
ARGUMENTS = {
    '{"a": "x  \\n"}': "<parameter=a>\nx  \n\n</parameter>\n",
    '{"a": "x  \n  ': '<parameter=arguments>\n{"a": "x  \n  \n</parameter>\n',
    "\t cut ": "<parameter=arguments>\n\t cut \n</parameter>\n",
    " \n ": "",
    "": "",
    f'{{"a": {150 * "["}{150 * "]"}}}': f"<parameter=a>\n{150 * '['}{150 * ']'}\n</parameter>\n",
    f'{{"a": {600 * "["}{600 * "]"}}}': f'<parameter=arguments>\n{{"a": {600 * "["}{600 * "]"}}}\n</parameter>\n',
    '{"a": "\\ud83d, \\ud83d\\ude00, \\\\ud83d"}': "<parameter=a>\n\ufffd, \U0001f600, \\ud83d\n</parameter>\n",
}


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_arguments_of_calls(newest: ServedModel, arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}, RESULT]
    text = prompt(newest, CHAT, {"messages": messages})
    assert f"<function=f>\n{ARGUMENTS[arguments]}</function>" in text


class Conversation:
    """A random well-formed conversation, as each of the three APIs writes it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._calls = 0
        self.chat: list[dict[str, Any]] = []
        self.items: list[dict[str, Any]] = []
        self.blocks: list[dict[str, Any]] = []
        self.system = self._text() if self._maybe() else None
        steps: list[Callable[[], None]] = [self._user, self._assistant, self._calling]
        if self._maybe():
            self._user()
        for _ in range(self._random.randrange(6)):
            self._random.choice(steps)()
        if not self.chat or self.chat[-1]["role"] == "assistant":
            self._user()

    def bodies(self) -> dict[str, dict[str, Any]]:
        """The request of each API."""
        schema = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}
        tool = {"name": "read", "description": "Reads <file>s.", "parameters": schema}
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = {"messages": self.blocks, "max_tokens": 9}
        if self.system is not None:
            messages["system"] = self.system
        return {
            CHAT: {"messages": [*system, *self.chat], "tools": [{"type": "function", "function": tool}]},
            RESPONSES: {"input": self.items, "instructions": self.system, "tools": [{"type": "function", **tool}]},
            MESSAGES: {
                **messages,
                "tools": [{"name": "read", "description": "Reads <file>s.", "input_schema": schema}],
            },
        }

    def _maybe(self) -> bool:
        return self._random.random() < 0.5

    def _text(self) -> str:
        words = ["a", "ß", " b ", "\n", "<tool_response>", "</think>x", "<|im_end|>", "日本", '"\\', "{}", "\U0001f600"]
        return "w" + "".join(self._random.choices(words, k=self._random.randrange(8)))

    def _user(self) -> None:
        text = self._text()
        self.chat.append({"role": "user", "content": [{"type": "text", "text": text}] if self._maybe() else text})
        self.items.append(
            {"role": "user", "content": [{"type": "input_text", "text": text}] if self._maybe() else text}
        )
        self.blocks.append({"role": "user", "content": [{"type": "text", "text": text}] if self._maybe() else text})

    def _thought(self) -> tuple[dict[str, Any], list[Any], list[Any]]:
        if self._maybe():
            return {}, [], []
        text = self._text()
        content = [{"type": "reasoning_text", "text": text}]
        item = {"type": "reasoning", "id": "r", "summary": [], "content": content}
        return {"reasoning_content": text}, [item], [{"type": "thinking", "thinking": text, "signature": "x"}]

    def _assistant(self) -> None:
        if self.chat and self.chat[-1]["role"] == "assistant":
            return  # a response has what is said in a row as one message
        said, items, blocks = self._thought()
        text = self._text()
        self.chat.append({"role": "assistant", "content": text, **said})
        self.items += [
            *items,
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
        ]
        self.blocks.append({"role": "assistant", "content": [*blocks, {"type": "text", "text": text}]})

    def _calling(self) -> None:
        if self.chat and self.chat[-1]["role"] == "assistant":
            return
        said, items, blocks = self._thought()
        calls, results, shown = [], [], []
        for _ in range(self._random.randint(1, 3)):
            self._calls += 1
            name = f"call_{self._calls}"
            arguments = {"path": self._text(), "n": self._random.randrange(9)}
            written, result = json.dumps(arguments, ensure_ascii=False), self._text()
            calls.append({"id": name, "type": "function", "function": {"name": "read", "arguments": written}})
            items.append({"type": "function_call", "call_id": name, "name": "read", "arguments": written})
            blocks.append({"type": "tool_use", "id": name, "name": "read", "input": arguments})
            results.append((name, result))
        self.chat.append({"role": "assistant", "content": None, "tool_calls": calls, **said})
        for name, result in results:
            self.chat.append({"role": "tool", "tool_call_id": name, "content": result})
            items.append({"type": "function_call_output", "call_id": name, "output": result})
            shown.append({"type": "tool_result", "tool_use_id": name, "content": result})
        self.items += items
        self.blocks += [{"role": "assistant", "content": blocks}, {"role": "user", "content": shown}]


@pytest.mark.parametrize("seed", range(8))
def test_three_apis_make_one_prompt(service: ServedModel, seed: int) -> None:
    check_conversation(service, seed)


@pytest.mark.slow
def test_many_conversations(service: ServedModel) -> None:
    for seed in range(8, 300):
        check_conversation(service, seed)


def check_conversation(service: ServedModel, seed: int) -> None:
    bodies = Conversation(seed).bodies()
    prompts = {path: prompt(service, path, body) for path, body in bodies.items()}
    assert prompts[CHAT] == prompts[RESPONSES] == prompts[MESSAGES], (seed, bodies)
