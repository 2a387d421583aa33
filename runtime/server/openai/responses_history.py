"""The items of a response's input in the form that chat templates read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.images import PART_RULE, part_of_url
from trigraph.runtime.server.openai.schema_responses import CALLS, KINDS, OUTPUTS, Item, Part, ResponsesRequest
from trigraph.runtime.server.tools import call_of, function_name
from trigraph.runtime.text.template import Message

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def input_messages(fields: ResponsesRequest) -> list[Message]:
    """The conversation. Raises ApiError for what the model cannot read."""
    first = [] if fields.instructions is None else [{"role": "system", "content": fields.instructions}]
    if isinstance(fields.input, str):
        return [*first, {"role": "user", "content": fields.input}]
    return [*first, *_messages(fields.input)]


def ignored_items(fields: ResponsesRequest) -> list[str]:
    """Sentences about the kinds of items that the model is not told of."""
    items = () if isinstance(fields.input, str) else fields.input
    kinds = dict.fromkeys(item.type for item in items if item.type is not None and item.type not in KINDS)
    return [f"input items of type {quote(kind)} are ignored" for kind in kinds]


def _messages(items: Iterable[Item]) -> Iterator[Message]:
    """What the assistant thought, said and called in a row is one message."""
    said: dict[str, Any] = {}
    for i, item in enumerate(items):
        kind, place = item.type or "message", f"input[{i}]"
        if kind == "reasoning":
            if said:
                yield {"content": "", **said}
            said = {"role": "assistant", "reasoning_content": _text(item.content or item.summary, place)}
        elif kind in CALLS:
            function = _function(item)
            said.setdefault("role", "assistant")
            said.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
        elif kind == "message" and item.role == "assistant":
            text = _text(item.content, place)
            said["role"] = "assistant"
            said["content"] = f"{said['content']}\n{text}" if said.get("content") else text
        elif kind == "message" or kind in OUTPUTS:
            if said:
                yield {"content": "", **said}
            said = {}
            yield _other(item, kind, place)
        elif kind == "item_reference":
            raise ApiError(f"{place} refers to another response, and this server keeps none; send the item itself")
    if said:
        yield {"content": "", **said}


def _function(item: Item) -> dict[str, Any]:
    """The function that an item calls."""
    if item.type == "custom_tool_call":
        return call_of(item.name or "", item.namespace, item.input or "")
    return {"name": function_name(item.name or "", item.namespace), "arguments": item.arguments or "{}"}


def _other(item: Item, kind: str, place: str) -> Message:
    if kind in OUTPUTS:
        content = _shown(item.output, f"{place}.output")
        return {"role": "tool", "tool_call_id": item.call_id, "content": content}
    if item.role not in _ROLES:
        raise ApiError(
            f"{place}.role is {quote(item.role)}; it must be one of {', '.join(_ROLES)}", param=f"{place}.role"
        )
    content = _shown(item.content, f"{place}.content") if item.role == "user" else _text(item.content, place)
    return {"role": _ROLES[item.role], "content": content}


def _shown(content: str | list[Part] | None, place: str) -> str | list[dict[str, Any]]:
    """A text, or parts of texts and images."""
    if not isinstance(content, list) or all(part.type != "input_image" for part in content):
        return _text(content, place)
    return [
        _image(part, f"{place}[{i}]")
        if part.type == "input_image"
        else {"type": "text", "text": _text([part], f"{place}[{i}]")}
        for i, part in enumerate(content)
    ]


def _image(part: Part, place: str) -> dict[str, Any]:
    if part.file_id is not None:
        raise ApiError(
            f"{place}.file_id is {quote(part.file_id)}, and this server keeps no files; give the image as image_url",
            param=f"{place}.file_id",
            code="unsupported_parameter",
        )
    return part_of_url(part.image_url, f"{place}.image_url")


def _text(content: str | list[Part] | None, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in _TEXTS:
            raise ApiError(f"{place} has a part of type {quote(part.type)}; {PART_RULE}", param=place)
    return "\n".join(part.text or part.refusal or "" for part in content)
