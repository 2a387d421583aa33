"""Replies as models write them, each with what it consists of by the rules of docs/reference/tool-calls.md."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from support.servers.replies import XML
from trigraph.runtime.text.lexemes import Ending
from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded, Content, Event, Reasoning
from trigraph.runtime.text.reply_parser import ReplyFormat


def tool(name: str, required: str = "", **properties: Any) -> dict[str, Any]:
    """A function whose parameters have these schemas."""
    parameters = {"type": "object", "properties": properties, "required": required.split()}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STRING = {"type": "string"}
TOOLS = [
    tool("write", "path content", path=STRING, content=STRING, mode=STRING),
    tool(
        "typed",
        n={"type": "integer"},
        x={"type": "number"},
        b={"type": "boolean"},
        a={"type": "array", "items": STRING},
        o={"type": "object"},
        maybe={"type": ["integer", "null"]},
        note={"anyOf": [STRING, {"type": "null"}]},
        either={"type": ["string", "integer", "boolean"]},
        some={"type": ["string", "array"]},
        any={},
    ),
    tool("must", "n", n={"type": "integer"}, maybe={"type": ["integer", "null"]}),
    tool("odd", "", **{"a b": STRING, "größe": STRING, "x.y-z": STRING, '"q"': STRING}),
    {"name": "now"},
]


class Thought(str):
    """Reasoning; a plain string is content."""


class Case(NamedTuple):
    """A reply, and what it consists of.

    That is content, thoughts, and calls: a name with arguments, or with their text where the call has not ended.
    """

    reply: str
    found: list[Any]
    format: ReplyFormat = XML
    thinking: bool = False
    """Whether the prompt opens a thought."""
    ended: Ending = "whole"


def xml(name: str, **arguments: Any) -> str:
    """A call as the chat templates write it."""
    return xml_call(name, arguments)


def xml_call(name: str, arguments: dict[str, Any]) -> str:
    """The same with any names of parameters."""
    values = {key: json.dumps(value) if isinstance(value, list | dict) else value for key, value in arguments.items()}
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def hermes(name: str, **arguments: Any) -> str:
    """A call as JSON."""
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def f(value: str, name: str = "write", key: str = "content") -> str:
    """A call whose one value, with what is around it, is written by hand."""
    return f"<tool_call>\n<function={name}>\n<parameter={key}>\n{value}"


def shown(events: list[Event]) -> list[Any]:
    """Events as a case has them; arguments of calls that have ended as JSON, so that 1, 1.0 and true differ."""
    found: list[Any] = []
    ended = {event.index for event in events if isinstance(event, CallEnded)}
    calls = dict[int, list[str]]()
    for event in events:
        match event:
            case Content() | Reasoning():
                kind = Thought if isinstance(event, Reasoning) else str
                if found and type(found[-1]) is kind:
                    found[-1] = kind(found[-1] + event.text)
                else:
                    found.append(kind(event.text))
            case CallBegun():
                calls[event.index] = [event.name, ""]
                found.append(calls[event.index])
            case Arguments():
                calls[event.index][1] += event.text
    for index, call in calls.items():
        if index in ended:
            try:
                call[1] = "= " + json.dumps(json.loads(call[1]), ensure_ascii=False)
            except ValueError:
                call[1] = f"no JSON: {call[1]}"
    return [(type(item), item) if isinstance(item, str) else item for item in found]


def expected(found: list[Any]) -> list[Any]:
    """What `shown` makes of the right events."""
    return [
        (type(item), item)
        if isinstance(item, str)
        else [item[0], item[1] if isinstance(item[1], str) else "= " + json.dumps(item[1], ensure_ascii=False)]
        for item in found
    ]
