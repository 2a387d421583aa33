"""What a reply consists of: reasoning, content and tool calls, as events in the order of its text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Reasoning:
    """More of the thought."""

    text: str


@dataclass(frozen=True)
class Content:
    """More of what is said."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """A call of the tool `name`: the reply's call number `index`, from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnded:
    """The call's arguments are complete; a call that the reply's end cuts off has no such event."""

    index: int


OfCall: TypeAlias = CallBegun | Arguments | CallEnded
Event: TypeAlias = Reasoning | Content | OfCall


def assistant_message(events: Iterable[Event], *, cut: bool = False) -> dict[str, Any]:
    """The reply as a message of a conversation. Calls that its end has cut off are left out unless `cut`."""
    texts: dict[type, list[str]] = {Reasoning: [], Content: []}
    calls: dict[int, CallBegun] = {}
    arguments: dict[int, list[str]] = {}
    ended: set[int] = set()
    for event in events:
        match event:
            case Reasoning() | Content():
                texts[type(event)].append(event.text)
            case CallBegun():
                calls[event.index], arguments[event.index] = event, []
            case Arguments():
                arguments[event.index].append(event.text)
            case CallEnded():
                ended.add(event.index)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts[Content])}
    if texts[Reasoning]:
        message["reasoning_content"] = "".join(texts[Reasoning])
    if shown := [i for i in calls if cut or i in ended]:
        message["tool_calls"] = [
            {
                "id": calls[i].id,
                "type": "function",
                "function": {"name": calls[i].name, "arguments": "".join(arguments[i])},
            }
            for i in shown
        ]
    return message
