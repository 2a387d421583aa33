"""Replies taken apart: reasoning, content and tool calls, whatever the pieces they come in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment

from support.servers.replies import JSON, PLAIN, TOOLS, WEATHER, WEATHER_JSON, XML
from trigraph.runtime.text.lexemes import Ending
from trigraph.runtime.text.reply import Arguments, CallBegun, Content, Event, Reasoning, assistant_message
from trigraph.runtime.text.reply_parser import ReplyFormat, ReplyParser


def events_of(
    pieces: Iterable[str], format: ReplyFormat, thinking: bool = False, tools: Any = TOOLS, ended: Ending = "whole"
) -> list[Event]:
    """The events of a reply; those that continue each other are joined."""
    parser = ReplyParser(format, tools, thinking=thinking)
    found = [event for piece in pieces for event in parser.push(piece)] + parser.finish(ended)
    joined: list[Event] = []
    for event in found:
        last = joined[-1] if joined else None
        if isinstance(event, Reasoning | Content) and isinstance(last, type(event)):
            joined[-1] = type(event)(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments) and last.index == event.index:
            joined[-1] = Arguments(event.index, last.text + event.text)
        else:
            joined.append(event)
    return [CallBegun(event.index, "id", event.name) if isinstance(event, CallBegun) else event for event in joined]


FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=now>", "<tool_call>\n<function=now>",
    "<function=get_weather>", "<function=", "<parameter=city>", "<parameter=days>", "</parameter>", "</function>",
    "</parameter>\n</function>", "\n", "\n\n", "\r\n", " ", "<", ">", "42", "text", "```", "\n```\n",
    '{"name": "now", "arguments": {', '"a": "b"', "}", "}}", '{"arguments": {}, "name": "now"}', '"', "\\", "ü", "</",
    WEATHER, WEATHER_JSON,
]  # fmt: skip
replies = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


@settings(max_examples=400, deadline=None)
@given(replies, st.data(), st.sampled_from([XML, JSON]), st.booleans(), st.sampled_from(["whole", "stopped", "cut"]))
def test_pieces_make_no_difference(
    reply: str, data: st.DataObject, format: ReplyFormat, thinking: bool, ended: Ending
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=8)))
    pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    expected = events_of([reply], format, thinking, ended=ended)
    assert events_of(pieces, format, thinking, ended=ended) == expected
    assert events_of(reply, format, thinking, ended=ended) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from('a<>\n/\u00fc tool_callthinkfunction={}"')), st.sampled_from([XML, JSON]), st.booleans())
def test_text_without_tags_stays_as_it_is(text: str, format: ReplyFormat, thinking: bool) -> None:
    if any(tag in text for tag in ("<think>", "</think>", "<tool_call>", "<function=")):
        return
    kind = Reasoning if thinking else Content
    assert events_of([text], format, thinking) == ([kind(text)] if text else [])


@settings(max_examples=100, deadline=None)
@given(replies)
def test_without_tools_or_format_all_is_content(reply: str) -> None:
    assert events_of([reply], PLAIN) == ([Content(reply)] if reply else [])
    no_tools = events_of([reply], ReplyFormat(False, "xml"), tools=[])
    assert no_tools == ([Content(reply)] if reply else [])


# How the templates of the models write a reply, for the way back.
WRITTEN = {
    "xml": """\
{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' + m.content }}
{%- for c in m.tool_calls %}
{{- '\n\n' if loop.first and m.content else '' if loop.first else '\n' }}
{{- '<tool_call>\n<function=' + c.name + '>\n' }}
{%- for name, value in c.arguments|items %}{{ '<parameter=' + name + '>\n' }}
{{- value | string if value is string or value is number or value is none else value | tojson }}{{ '\n</parameter>\n' }}
{%- endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}""",
    "json": """\
{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' + m.content }}
{%- for c in m.tool_calls %}{{ '\n' if m.content or not loop.first else '' }}{{ '<tool_call>\n{"name": "' + c.name }}
{{- '", "arguments": ' + c.arguments|tojson + '}\n</tool_call>' }}{% endfor %}""",
}
environment = Environment(trim_blocks=True, lstrip_blocks=True)
environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
TEMPLATES = {family: environment.from_string(source) for family, source in WRITTEN.items()}
words = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="<\n\r"), min_size=1)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "city": st.text(st.sampled_from("ab \n\r{}\"\\'<>/ü")),
        "days": st.integers(),
        "wind": st.floats(allow_nan=False, allow_infinity=False),
        "metric": st.booleans(),
        "where": st.dictionaries(words, st.none() | st.booleans() | words),
        "tags": st.lists(words),
        "note": st.none(),
    },
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(words, words | st.just(""), st.lists(st.tuples(st.sampled_from(["get_weather", "now"]), arguments)), st.data())
@pytest.mark.parametrize("family", ["xml", "json"])
def test_what_a_template_writes_is_read_back(
    family: str, thought: str, content: str, calls: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    if family == "xml":  # only a schema tells numbers from strings
        calls = [("get_weather", given) for _, given in calls]
    message = {
        "reasoning_content": thought,
        "content": content,
        "tool_calls": [{"name": name, "arguments": given} for name, given in calls],
    }
    reply = TEMPLATES[family].render(m=message)
    size = data.draw(st.integers(1, 9))
    format = ReplyFormat(True, family)
    parser = ReplyParser(format, TOOLS)
    events = [event for i in range(0, len(reply), size) for event in parser.push(reply[i : i + size])]
    found = assistant_message(events + parser.finish())
    assert found["reasoning_content"] == thought
    assert found["content"] == content
    read = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in found.get("tool_calls", [])]
    assert read == calls


def test_a_message_leaves_out_a_call_that_was_cut_off() -> None:
    parser = ReplyParser(XML, TOOLS)
    message = assistant_message(parser.push(WEATHER + WEATHER[:55]) + parser.finish("cut"))
    assert [c["function"]["arguments"] for c in message["tool_calls"]] == ['{"city": "Oslo"}']
    assert message["tool_calls"][0]["id"].startswith("call_")
    assert "reasoning_content" not in message


def test_text_is_passed_on_as_soon_as_it_is_certain() -> None:
    parser = ReplyParser(XML, TOOLS, thinking=True)
    assert parser.push("so <") == [Reasoning("so ")]
    assert parser.push("b") == [Reasoning("<b")]
    assert parser.push("</think>\n\nyes") == [Content("yes")]
    begun = parser.push("\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOs")
    assert begun[0] == CallBegun(0, begun[0].id, "get_weather")  # type: ignore[union-attr]
    assert begun[1:] == [Arguments(0, '{"city": "Os')]
    assert parser.push("lo\n</param") == [Arguments(0, "lo")]


def test_the_format_of_a_template() -> None:
    sources = {
        "{{ '<tool_call>\n<function=' }} {{ content.split('</think>') }}": XML,
        """{{ '<tool_call>\n{"name": "' }} arguments </think>""": JSON,
        "<tool_call> arguments": ReplyFormat(False, "json"),
        "{{ messages }}": PLAIN,
    }
    for source, format in sources.items():
        assert ReplyFormat.of_template(source) == format
    assert XML.thinks("<|im_start|>assistant\n<think>\n")
    assert not XML.thinks("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not PLAIN.thinks("<think>")
