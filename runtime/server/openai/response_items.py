"""The output of a response, item by item: what it holds, and the events of its making."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded, Content, Event, Reasoning

_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_EVENTS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


class ResponseItems:
    """Takes the events of a reply. `output` holds the items so far."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] = []
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
                yield from self._begin("function_call", {"call_id": event.id, "name": event.name, "arguments": ""})
            case Arguments():
                yield from self._more(event.text)
            case CallEnded():
                yield from self._end("completed")

    def close(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        """Ends the item that is open, if one is: a call is incomplete then."""
        if self._open:
            yield from self._end("incomplete" if self.output[-1]["type"] == "function_call" else status)

    def _end(self, status: str) -> Iterator[dict[str, Any]]:
        self._open = False
        item = self.output[-1]
        kind = item["type"]
        item["status"] = status
        if kind == "function_call":
            if status == "completed":
                yield self._event(f"{_EVENTS[kind]}.done", arguments=item["arguments"], name=item["name"])
        else:
            part = item["content"][0]
            logprobs = {"logprobs": part["logprobs"]} if kind == "message" else {}
            yield self._event(f"{_EVENTS[kind]}.done", content_index=0, text=part["text"], **logprobs)
            yield self._event("response.content_part.done", content_index=0, part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": item}

    def _begin(self, kind: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open and self.output[-1]["type"] == kind:
            return
        yield from self.close()
        item = {"type": kind, "id": f"{_PREFIXES[kind]}_{uuid.uuid4().hex}", "status": "in_progress", **fields}
        self.output.append(item)
        self._open = True
        yield {"type": "response.output_item.added", "output_index": len(self.output) - 1, "item": _copy(item)}
        if kind != "function_call":
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"].append(part)
            yield self._event("response.content_part.added", content_index=0, part=_copy(part))

    def _more(self, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> Iterator[dict[str, Any]]:
        item = self.output[-1]
        kind = item["type"]
        if kind == "function_call":
            item["arguments"] += text
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
