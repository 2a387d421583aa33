"""Messages in the form that a chat template reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, TypeAlias

from trigraph.runtime.text.json_text import whole_characters

Message: TypeAlias = Mapping[str, Any]

_PART_TEXT = re.compile(r"""\.text\b|\[["']text["']\]""")
_DEEPEST = 200  # of arguments, as of a request: what handles them later goes as deep
_THINK, _THINK_END = "<think>", "</think>"


def as_template_reads(messages: SequenceOf[Message], source: str) -> list[Message]:
    """The messages for a template (Jinja text), whatever form they are in.

    Reasoning is where the template looks for it: in `reasoning_content`, or else within the content. Arguments of tool
    calls are objects, or their JSON text where the template takes that; parts of text are one text, unless it takes
    parts.
    """
    return [_message(message, source) for message in messages]


def _message(message: Message, source: str) -> Message:
    changed = dict(message)
    content = changed.get("content")
    if isinstance(content, list) and not _takes_parts(source) and all(_is_text(part) for part in content):
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
    if isinstance(changed.get("tool_calls"), list):
        as_text = "arguments is string" in source
        changed["tool_calls"] = [_with_object(call, as_text) for call in changed["tool_calls"]]
    return changed


def _takes_parts(source: str) -> bool:
    """Whether a template reads the texts of a content's parts; of one that only looks for a string, nothing is left."""
    return "is string" in source and _PART_TEXT.search(source) is not None


def _with_object(call: Any, as_text: bool) -> Any:
    """A tool call whose arguments are an object, or the text of one that is kept as it was written."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _with_object(call["function"], as_text)}
    given = call.get("arguments")
    arguments = _object(given)
    if not as_text:
        return {**call, "arguments": arguments}
    kept = isinstance(given, str) and _parsed(given) == arguments
    return {**call, "arguments": given if kept else json.dumps(arguments, ensure_ascii=False)}


def _object(given: Any) -> dict[str, Any]:
    """Arguments as a model or client may have written them, as an object; what is not one is an argument of it."""
    value = _parsed(given) if isinstance(given, str) else given
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    return dict(value) if isinstance(value, Mapping) else {"arguments": value}


def _parsed(text: str) -> Any:
    """The value of a JSON text; of one that was cut off or is nested too deeply, the text itself."""
    try:
        value = json.loads(whole_characters(text))
    except (ValueError, RecursionError):
        return text
    return text if _is_deeper(value, _DEEPEST) else value


def _is_deeper(value: Any, most: int) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(most == 0 or _is_deeper(item, most - 1) for item in items)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)
