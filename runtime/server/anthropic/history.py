"""Anthropic's messages in the form that chat templates read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.server.anthropic.schema import Block, MessageParam, TokensRequest
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.images import PART_RULE, check_media_type, image_part, part_of_url
from trigraph.runtime.server.prompt import ChatPrompt, chat_prompt, template_variables
from trigraph.runtime.server.reply_form import ToolChoice
from trigraph.runtime.server.tools import function_tool
from trigraph.runtime.text.template import Message

# Claude Code's first line, whose number is another one in each request: no prompt would begin like the one before.
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")
# Other blocks in an assistant's message are of the provider's own tools, of which new kinds appear.
_KINDS = {
    *("text", "thinking", "redacted_thinking", "tool_use"),
    *("image", "document", "search_result", "tool_result", "tool_reference"),
}


def anthropic_prompt(
    model: ServedModel, fields: TokensRequest, choice: ToolChoice, *, counted: bool = False
) -> ChatPrompt:
    """The prompt of a request; `counted`: see `chat_prompt`. Raises ApiError or TrigraphError for what is wrong."""
    messages = [*_system(fields.system), *_messages(fields.messages)]
    effort = None if fields.output_config is None else fields.output_config.effort
    variables = template_variables(fields.chat_template_kwargs, effort)
    if fields.thinking is not None:
        variables.setdefault("enable_thinking", fields.thinking.type != "disabled")
    return chat_prompt(model, messages, choice.tools, variables, counted=counted)


def tool_choice(fields: TokensRequest) -> ToolChoice:
    """The tools that may be called, and whether one must be."""
    wanted = fields.tool_choice
    if wanted is not None and wanted.type == "none":
        return ToolChoice()
    tools = []
    for tool in fields.tools or ():
        if tool.name and tool.input_schema is not None:
            tools.append(function_tool(tool.name, tool.description, tool.input_schema))
    strict = frozenset(tool.name for tool in fields.tools or () if tool.name and tool.strict)
    if wanted is None:
        return ToolChoice(tools, strict=strict)
    if wanted.type == "tool" and wanted.name is None:
        raise ApiError("tool_choice.name is missing; name the tool to call", param="tool_choice.name")
    return ToolChoice(
        tools,
        wanted.type == "any",
        wanted.name if wanted.type == "tool" else None,
        not wanted.disable_parallel_tool_use,
        strict,
    )


def ignored(fields: TokensRequest) -> list[str]:
    """Sentences about what the model is not told of: tools that would run at the provider's, and what came of them."""
    tools = dict.fromkeys(tool.type for tool in fields.tools or () if not tool.name or tool.input_schema is None)
    said = [message.content for message in fields.messages if message.role == "assistant"]
    blocks = dict.fromkeys(
        block.type for content in said if isinstance(content, list) for block in content if block.type not in _KINDS
    )
    return [
        *(f"tools of type {quote(kind)} are ignored" for kind in tools),
        *(f"blocks of type {quote(kind)} are ignored" for kind in blocks),
    ]


def _system(system: str | list[Block] | None) -> Iterator[Message]:
    blocks = [system] if isinstance(system, str) else [block.text or "" for block in system or ()]
    text = "\n\n".join(filter(None, (_BILLING.sub("", block) if _BILLING.match(block) else block for block in blocks)))
    if text:
        yield {"role": "system", "content": text}


def _messages(messages: Iterable[MessageParam]) -> Iterator[Message]:
    for i, message in enumerate(messages):
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [Block(type="text", text=blocks)]
        if message.role == "assistant":
            yield _assistant(blocks, i)
        else:  # the system's own in the middle of a conversation, which templates do not know, are the user's as well
            yield from _user(blocks, i)


def _assistant(blocks: list[Block], number: int) -> Message:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            function = {"name": block.name or "", "arguments": block.input or {}}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type in _KINDS and block.type != "redacted_thinking":
            texts.append(_text(block, f"messages[{number}].content[{i}]"))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(blocks: list[Block], number: int) -> Iterator[Message]:
    """Results of tools are messages of their own."""
    parts: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        place = f"messages[{number}].content[{i}]"
        if block.type != "tool_result":
            parts.append(_part(block, place))
            continue
        if parts:
            yield {"role": "user", "content": _content(parts)}
            parts = []
        content: Any = block.content or ""
        if isinstance(content, dict):
            raise ApiError(f"{place}.content is {quote(content)}; give a text or blocks", param=f"{place}.content")
        if isinstance(content, list):
            content = _content([_part(part, f"{place}.content[{j}]") for j, part in enumerate(content)])
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
    if parts or not blocks:
        yield {"role": "user", "content": _content(parts)}


def _part(block: Block, place: str) -> dict[str, Any]:
    if block.type != "image":
        return {"type": "text", "text": _text(block, place)}
    if (source := block.source) is None:
        raise ApiError(f"{place}.source is missing; give one of type base64", param=f"{place}.source")
    if source.type == "url":
        return part_of_url(source.url, f"{place}.source.url")
    if source.type == "base64" and source.data is None:
        raise ApiError(f"{place}.source.data is missing; give the image in base64", param=f"{place}.source.data")
    if source.type != "base64" or source.data is None:
        raise ApiError(
            f"{place}.source has the type {quote(source.type)}; send the image itself, of type base64 with its data",
            param=f"{place}.source",
        )
    check_media_type(source.media_type, f"{place}.source.media_type")
    return image_part(source.data, f"{place}.source.data")


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Texts are one; with an image among them, those between images are."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if found and found[-1]["type"] == part["type"] == "text":
            found[-1] = {"type": "text", "text": f"{found[-1]['text']}\n{part['text']}"}
        else:
            found.append(part)
    if all(part["type"] == "text" for part in found):
        return "".join(part["text"] for part in found)
    return found


def _text(block: Block, place: str) -> str:
    if block.type == "text":
        return block.text or ""
    if block.type == "tool_reference":
        return f"The tool {block.tool_name} can be called."
    if block.type == "document" and block.source is not None and block.source.type == "text":
        return block.source.data or ""
    raise ApiError(f"{place}.type is {quote(block.type)}; {PART_RULE}", param=f"{place}.type")
