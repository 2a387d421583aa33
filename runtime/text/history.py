"""Messages in the form that a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]

_THINK, _THINK_END = "<think>", "</think>"


def as_template_reads(messages: SequenceOf[Message], source: str) -> list[Message]:
    """The messages for a template (Jinja text), whatever form they are in.

    Reasoning is where the template looks for it: in `reasoning_content`, or else within the content. Arguments of tool
    calls are objects, unless the template takes JSON text; parts of text are one text, unless it takes parts.
    """
    return [_message(message, source) for message in messages]


def _message(message: Message, source: str) -> Message:
    changed = dict(message)
    content = changed.get("content")
    if isinstance(content, list) and "is string" not in source and all(_is_text(part) for part in content):
        changed["content"] = content = "\n".join(part["text"] for part in content)
    if changed.get("role") != "assistant":
        return changed
    if content is None:
        changed["content"] = content = ""
    reasoning = changed.get("reasoning_content")
    if "reasoning_content" in source:
        if reasoning is None and isinstance(content, str) and _THINK_END in content:
            thought, _, said = content.partition(_THINK_END)
            changed["reasoning_content"] = thought.rpartition(_THINK)[2].strip("\n")
            changed["content"] = said.lstrip("\n")
    elif reasoning and isinstance(content, str) and _THINK_END in source:
        changed["content"] = f"{_THINK}\n{reasoning}\n{_THINK_END}\n\n{content}"
    if isinstance(changed.get("tool_calls"), list) and "arguments is string" not in source:
        changed["tool_calls"] = [_with_object(call) for call in changed["tool_calls"]]
    return changed


def _with_object(call: Any) -> Any:
    """A tool call whose arguments are an object, where its text of them is one."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _with_object(call["function"])}
    try:
        arguments = json.loads(call["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return call
    return {**call, "arguments": arguments}


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)
