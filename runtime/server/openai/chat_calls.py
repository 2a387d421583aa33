"""What a reply says and calls, as chat completions write it: with tools as the request has named them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trigraph.runtime.server.job import Generation
from trigraph.runtime.server.openai.custom_input import CustomInput, custom_input
from trigraph.runtime.server.tools import Origin
from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded, Content, Event, Reasoning, assistant_message
from trigraph.runtime.text.template import Message


def said(generation: Generation, origins: Mapping[str, Origin]) -> Message:
    """The whole message."""
    message = assistant_message(generation.events, cut=True)
    content = message["content"] or (None if message.get("tool_calls") else "")
    reply = {**message, "content": content, "refusal": None, "annotations": []}
    if "tool_calls" in message:
        reply["tool_calls"] = [_call(call, origins) for call in message["tool_calls"]]
    return reply


class Deltas:
    """The message as it comes."""

    def __init__(self, origins: Mapping[str, Origin]) -> None:
        self._origins = origins
        self._inputs: dict[int, CustomInput] = {}

    def of(self, event: Event) -> Iterator[dict[str, Any]]:
        """What an event adds to the message."""
        match event:
            case Reasoning():
                yield {"reasoning_content": event.text}
            case Content():
                yield {"content": event.text}
            case CallBegun() if _is_custom(event.name, self._origins):
                self._inputs[event.index] = CustomInput()
                custom = {"name": event.name, "input": ""}
                yield {"tool_calls": [{"index": event.index, "id": event.id, "type": "custom", "custom": custom}]}
            case CallBegun():
                function = {"name": event.name, "arguments": ""}
                yield {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}
            case Arguments() if event.index in self._inputs:
                yield from self._more(event.index, self._inputs[event.index].push(event.text))
            case Arguments():
                yield {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
            case CallEnded() if event.index in self._inputs:
                yield from self._more(event.index, self._inputs[event.index].finish())

    def _more(self, index: int, text: str) -> Iterator[dict[str, Any]]:
        if text:
            yield {"tool_calls": [{"index": index, "custom": {"input": text}}]}


def _call(call: dict[str, Any], origins: Mapping[str, Origin]) -> dict[str, Any]:
    function = call["function"]
    if not _is_custom(function["name"], origins):
        return call
    custom = {"name": function["name"], "input": custom_input(function["arguments"])}
    return {"id": call["id"], "type": "custom", "custom": custom}


def _is_custom(name: str, origins: Mapping[str, Origin]) -> bool:
    return name in origins and origins[name].custom
