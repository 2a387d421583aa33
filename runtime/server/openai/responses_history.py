"""The items of a response's input in the form that chat templates read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.images import PART_RULE, part_of_url
from trigraph.runtime.server.openai.schema_responses import Item, Part, ResponsesRequest
from trigraph.runtime.server.reply_form import ToolChoice
from trigraph.runtime.server.schema import TOOL_NAME, TOOL_NAME_RULE
from trigraph.runtime.text.template import Message

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def input_messages(fields: ResponsesRequest) -> list[Message]:
    """The conversation. Raises ApiError for what the model cannot read."""
    first = [] if fields.instructions is None else [{"role": "system", "content": fields.instructions}]
    if isinstance(fields.input, str):
        return [*first, {"role": "user", "content": fields.input}]
    return [*first, *_messages(fields.input)]


def tool_choice(fields: ResponsesRequest) -> ToolChoice:
    """The tools that may be called, and whether one must be. Those that are no functions are ignored."""
    choice = fields.tool_choice
    if choice == "none":
        return ToolChoice()
    tools: list[dict[str, Any]] = []
    strict: set[str] = set()
    for tool in fields.tools or ():
        name, parameters = tool.get("name"), tool.get("parameters")
        if tool.get("type") != "function" or not isinstance(name, str) or not name:
            continue
        if not TOOL_NAME.fullmatch(name):
            raise ApiError(f"tools has {quote(name)}; {TOOL_NAME_RULE}", param="tools", code="invalid_value")
        function: dict[str, Any] = {"name": name, "parameters": parameters if isinstance(parameters, dict) else {}}
        if isinstance(tool.get("description"), str):
            function["description"] = tool["description"]
        tools.append({"type": "function", "function": function})
        if tool.get("strict") is True:
            strict.add(name)
    required, named = choice == "required", None
    if isinstance(choice, dict) and choice.get("type") == "function":
        named = choice.get("name")
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = [tool.get("name") for tool in choice.get("tools") or () if isinstance(tool, dict)]
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
        required = choice.get("mode") == "required"
    if isinstance(choice, str) and choice not in ("auto", "required"):
        raise ApiError(
            f"tool_choice is {quote(choice)}; it must be auto, none, required or a function",
            param="tool_choice",
            code="invalid_value",
        )
    return ToolChoice(
        tools,
        required,
        named if isinstance(named, str) else None,
        fields.parallel_tool_calls is not False,
        frozenset(strict),
    )


def _messages(items: Iterable[Item]) -> Iterator[Message]:
    """What the assistant thought, said and called in a row is one message."""
    said: dict[str, Any] = {}
    for i, item in enumerate(items):
        kind, place = item.type or "message", f"input[{i}]"
        if kind == "reasoning":
            if said:
                yield {"content": "", **said}
            said = {"role": "assistant", "reasoning_content": _text(item.content or item.summary, place)}
        elif kind == "function_call":
            function = {"name": item.name or "", "arguments": item.arguments or "{}"}
            said.setdefault("role", "assistant")
            said.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
        elif kind == "message" and item.role == "assistant":
            text = _text(item.content, place)
            said["role"] = "assistant"
            said["content"] = f"{said['content']}\n{text}" if said.get("content") else text
        elif kind in ("message", "function_call_output"):
            if said:
                yield {"content": "", **said}
            said = {}
            yield _other(item, kind, place)
        elif kind == "item_reference":
            raise ApiError(f"{place} refers to another response, and this server keeps none; send the item itself")
    if said:
        yield {"content": "", **said}


def _other(item: Item, kind: str, place: str) -> Message:
    if kind == "function_call_output":
        content = _shown(item.output, f"{place}.output")
        return {"role": "tool", "tool_call_id": item.call_id, "content": content}
    if item.role not in _ROLES:
        raise ApiError(
            f"{place}.role is {quote(item.role)}; it must be one of {', '.join(_ROLES)}",
            param=f"{place}.role",
            code="invalid_value",
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
            raise ApiError(
                f"{place} has a part of type {quote(part.type)}; {PART_RULE}",
                param=place,
                code="invalid_value",
            )
    return "\n".join(part.text or part.refusal or "" for part in content)
