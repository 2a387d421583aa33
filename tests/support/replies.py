"""Replies of models, written by hand from the formats' descriptions, and what they consist of."""

from __future__ import annotations

import json
from typing import Any

from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded, Content, Event, Reasoning
from trigraph.runtime.text.reply_parser import ReplyFormat

XML, JSON, PLAIN = ReplyFormat(True, "xml"), ReplyFormat(True, "json"), ReplyFormat()
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "wind": {"type": "number"},
                    "metric": {"type": "boolean"},
                    "where": {"$ref": "#/$defs/Place"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "$defs": {"Place": {"type": "object"}},
            },
        },
    },
    {"name": "now"},
]


def call(name: str, arguments: str, index: int = 0) -> list[Event]:
    return [CallBegun(index, "id", name), Arguments(index, arguments), CallEnded(index)]


WEATHER = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
WEATHER_JSON = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'

# (format, whether the prompt opens the thought, reply, events)
EXAMPLES: dict[str, tuple[ReplyFormat, bool, str, list[Event]]] = {
    "plain": (PLAIN, False, "a <think> b </think> <tool_call>\n", [Content("a <think> b </think> <tool_call>\n")]),
    "a thought": (JSON, False, "<think>\nhm\n</think>\n\nyes", [Reasoning("hm"), Content("yes")]),
    "an opened thought": (XML, True, "hm\n\nhm\n</think>\n\nyes\n", [Reasoning("hm\n\nhm"), Content("yes\n")]),
    "a thought opened twice": (XML, True, "<think>\nhm</think>yes", [Reasoning("hm"), Content("yes")]),
    "no thought": (XML, False, "yes < no", [Content("yes < no")]),
    "an empty thought": (JSON, False, "<think>\n\n</think>\n\nyes", [Content("yes")]),
    "an unfinished thought": (XML, True, "hm </thin", [Reasoning("hm </thin")]),
    "a call": (XML, False, WEATHER, call("get_weather", '{"city": "Oslo"}')),
    "a call after text": (
        XML,
        True,
        f"hm\n</think>\n\nLet me see.\n\n{WEATHER}",
        [Reasoning("hm"), Content("Let me see."), *call("get_weather", '{"city": "Oslo"}')],
    ),
    "calls in a row": (
        XML,
        False,
        f"{WEATHER}\n<tool_call>\n<function=now>\n</function>\n</tool_call>\nDone",
        [*call("get_weather", '{"city": "Oslo"}'), *call("now", "{}", 1), Content("Done")],
    ),
    "a call on one line": (
        XML,
        False,
        "<tool_call><function=get_weather><parameter=city>Oslo</parameter><parameter=days>3</parameter></function>"
        "</tool_call>",
        call("get_weather", '{"city": "Oslo", "days": 3}'),
    ),
    "typed arguments": (
        XML,
        False,
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n<parameter=wind>\n-1.5e3\n</parameter>\n"
        "<parameter=metric>\nTrue\n</parameter>\n<parameter=where>\n{\"lat\": 59.9}\n</parameter>\n"
        '<parameter=tags>\n["a", "b"]\n</parameter>\n<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>',
        call(
            "get_weather",
            '{"days": 3, "wind": -1.5e3, "metric": true, "where": {"lat": 59.9}, "tags": ["a", "b"], "note": null}',
        ),
    ),
    "arguments of another type": (
        XML,
        False,
        "<tool_call>\n<function=get_weather>\n<parameter=days>\nsoon\n</parameter>\n<parameter=where>\n{here\n</parameter>\n"
        "<parameter=note>\n12\n</parameter>\n<parameter=other>\n12\n</parameter>\n</function>\n</tool_call>",
        call("get_weather", '{"days": "soon", "where": "{here", "note": "12", "other": "12"}'),
    ),
    "a string stays as it is": (
        XML,
        False,
        '<tool_call>\n<function=get_weather>\n<parameter=city>\n\n  "a"\\n <b>\t</function>\n\n</parameter>\n'
        "</function>\n</tool_call>",
        call("get_weather", json.dumps({"city": '\n  "a"\\n <b>\t</function>\n'})),
    ),
    "a forgotten beginning": (XML, False, WEATHER[12:], call("get_weather", '{"city": "Oslo"}')),
    "forgotten ends": (
        XML,
        False,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n<parameter=note>\nx\n</function>\n</tool_call>",
        call("get_weather", '{"city": "Oslo", "note": "x"}'),
    ),
    "the reply ends between parameters": (XML, False, WEATHER[:70], call("get_weather", '{"city": "Oslo"')[:2]),
    "the reply ends in an argument": (
        XML,
        False,
        WEATHER[:55],
        [CallBegun(0, "id", "get_weather"), Arguments(0, '{"city": "Osl')],
    ),
    "the reply ends in a name": (XML, False, f"Hm\n\n{WEATHER[:24]}", [Content(f"Hm\n\n{WEATHER[:24]}")]),
    "the reply ends in a tag": (XML, False, "Hm\n<tool", [Content("Hm\n<tool")]),
    "prose of a call": (XML, False, "Write\n<tool_call> and so on", [Content("Write\n<tool_call> and so on")]),
    "prose of a function": (XML, False, "Write <function=f> and", [Content("Write <function=f> and")]),
    "a call after prose of one": (
        XML,
        False,
        f"Use <tool_call>:\n{WEATHER}",
        [Content("Use <tool_call>:"), *call("get_weather", '{"city": "Oslo"}')],
    ),
    "a thought of a call": (
        XML,
        True,
        "I use\n<tool_call> now\n</think>\nok",
        [Reasoning("I use\n<tool_call> now"), Content("ok")],
    ),
    "a whole call in a thought": (
        XML,
        True,
        f"I write\n{WEATHER}\nand so on\n</think>\n\nok",
        [Reasoning(f"I write\n{WEATHER}\nand so on"), Content("ok")],
    ),
    "a call that ends a thought": (
        XML,
        True,
        f"hm\n{WEATHER}\n{WEATHER}\n",
        [Reasoning("hm"), *call("get_weather", '{"city": "Oslo"}'), *call("get_weather", '{"city": "Oslo"}', 1)],
    ),
    "an unfinished thought with a call": (XML, True, f"hm\n{WEATHER} or", [Reasoning(f"hm\n{WEATHER} or")]),
    "JSON": (JSON, False, WEATHER_JSON, call("get_weather", '{"city": "Oslo"}')),
    "JSON after a thought and text": (
        JSON,
        False,
        f"<think>\nhm\n</think>\n\nSo:\n{WEATHER_JSON}\n{WEATHER_JSON}",
        [
            Reasoning("hm"),
            Content("So:"),
            *call("get_weather", '{"city": "Oslo"}'),
            *call("get_weather", '{"city": "Oslo"}', 1),
        ],
    ),
    "JSON with brackets in strings": (
        JSON,
        False,
        '<tool_call>{"name":"f","arguments":{"a":"}]\\"</tool_call>","b":[{}]}}</tool_call>!',
        [*call("f", '{"a":"}]\\"</tool_call>","b":[{}]}'), Content("!")],
    ),
    "JSON in another order": (
        JSON,
        False,
        '<tool_call>\n{"arguments": {"a": "ü"}, "name": "f"}\n</tool_call>',
        call("f", '{"a": "ü"}'),
    ),
    "JSON in a string": (
        JSON,
        False,
        '<tool_call>\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n</tool_call>',
        call("f", '{"a": 1}'),
    ),
    "JSON without arguments": (JSON, False, '<tool_call>\n{"name": "f"}\n</tool_call>', call("f", "{}")),
    "JSON that is none": (
        JSON,
        False,
        'So\n<tool_call>\n{"name": f}\n</tool_call>\nok',
        [Content('So\n<tool_call>\n{"name": f}\n</tool_call>\nok')],
    ),
    "unfinished JSON": (
        JSON,
        False,
        '<tool_call>\n{"name": "f", "arguments": {"a": "b',
        [CallBegun(0, "id", "f"), Arguments(0, '{"a": "b')],
    ),
}  # fmt: skip
