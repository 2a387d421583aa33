"""The output of a response, item by item: what it holds, and the events of its making."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trigraph.runtime.server.openai.custom_input import CustomInput
from trigraph.runtime.server.tools import Origin
from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded, Content, Event, Reasoning

_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}
_EVENTS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}
_WRITTEN = {"function_call": "arguments", "custom_tool_call": "input"}  # what a call's events add to


class ResponseItems:
    """Takes the events of a reply. `output` holds the items so far, with tools as the request has named them."""

    def __init__(self, origins: Mapping[str, Origin]) -> None:
        self.output: list[dict[str, Any]] = []
        self._origins = origins
        self._input = CustomInput()
        self._open = False

    def take(self, event: Event, logprobs: Sequence[dict[str, Any]] = ()) -> Iterator[dict[str, Any]]:
        """The events that an event of the reply makes, without their numbers. `logprobs`: those of its content."""
        match event:
            case Reasoning():
                yield from self._begin("reasoning", {"summary": [], "content": []})
                yield from self._more(event.text)
            case Content():
                yield from self._begin("message", {"role": "assistant", "content": []})
                yield from self._more(event.text, logprobs)
            case CallBegun():
                yield from self.close()
                yield from self._call(event)
            case Arguments():
                custom = self.output[-1]["type"] == "custom_tool_call"
                if text := self._input.push(event.text) if custom else event.text:
                    yield from self._more(text)
            case CallEnded():
                yield from self._end("completed")

    def close(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        """Ends the item that is open, if one is: a call is incomplete then."""
        if self._open:
            yield from self._end("incomplete" if self.output[-1]["type"] in _WRITTEN else status)

    def _end(self, status: str) -> Iterator[dict[str, Any]]:
        item = self.output[-1]
        kind = item["type"]
        if kind == "custom_tool_call" and (text := self._input.finish()):
            yield from self._more(text)
        self._open = False
        item["status"] = status
        if kind in _WRITTEN:
            if status != "completed":
                return  # clients run what is done, whatever its status
            named = {"name": item["name"]} if kind == "function_call" else {}
            yield self._event(f"{_EVENTS[kind]}.done", **{_WRITTEN[kind]: item[_WRITTEN[kind]]}, **named)
        else:
            part = item["content"][0]
            logprobs = {"logprobs": part["logprobs"]} if kind == "message" else {}
            yield self._event(f"{_EVENTS[kind]}.done", content_index=0, text=part["text"], **logprobs)
            yield self._event("response.content_part.done", content_index=0, part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": item}

    def _call(self, event: CallBegun) -> Iterator[dict[str, Any]]:
        origin = self._origins.get(event.name, Origin(event.name))
        fields = {"call_id": event.id, "name": origin.name}
        if origin.namespace is not None:
            fields["namespace"] = origin.namespace
        kind = "custom_tool_call" if origin.custom else "function_call"
        self._input = CustomInput()
        yield from self._begin(kind, {**fields, _WRITTEN[kind]: ""})

    def _begin(self, kind: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open and self.output[-1]["type"] == kind:
            return
        yield from self.close()
        item = {"type": kind, "id": f"{_PREFIXES[kind]}_{uuid.uuid4().hex}", "status": "in_progress", **fields}
        self.output.append(item)
        self._open = True
        yield {"type": "response.output_item.added", "output_index": len(self.output) - 1, "item": _copy(item)}
        if kind not in _WRITTEN:
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"].append(part)
            yield self._event("response.content_part.added", content_index=0, part=_copy(part))

    def _more(self, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> Iterator[dict[str, Any]]:
        item = self.output[-1]
        kind = item["type"]
        if kind in _WRITTEN:
            item[_WRITTEN[kind]] += text
            yield self._event(f"{_EVENTS[kind]}.delta", delta=text)
            return
        part = item["content"][0]
        part["text"] += text
        more = {}
        if kind == "message":
            part["logprobs"] += logprobs
            more = {"logprobs": [*logprobs]}
        yield self._event(f"{_EVENTS[kind]}.delta", content_index=0, delta=text, **more)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self.output[-1]["id"], "output_index": len(self.output) - 1, **fields}


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """The item as it is now: it will be changed."""
    return {key: list(value) if isinstance(value, list) else value for key, value in item.items()}
