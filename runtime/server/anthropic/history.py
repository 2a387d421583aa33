"""Anthropic's messages in the form that chat templates read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.server.anthropic.schema import Block, MessageParam, TokensRequest
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.prompt import ChatPrompt, chat_prompt, template_variables
from trigraph.runtime.server.reply_form import ToolChoice
from trigraph.runtime.server.service import Service
from trigraph.runtime.text.template import Message

# Claude Code's first line, whose number is another one in each request: no prompt would begin like the one before.
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")


def anthropic_prompt(
    service: Service, fields: TokensRequest, choice: ToolChoice, *, counted: bool = False
) -> ChatPrompt:
    """The prompt of a request; `counted`: see `chat_prompt`. Raises ApiError or TrigraphError for what is wrong."""
    messages = [*_system(fields.system), *_messages(fields.messages)]
    effort = None if fields.output_config is None else fields.output_config.effort
    variables = template_variables(fields.chat_template_kwargs, effort)
    if fields.thinking is not None:
        variables.setdefault("enable_thinking", fields.thinking.type != "disabled")
    return chat_prompt(service, messages, choice.tools, variables, counted=counted)


def tool_choice(fields: TokensRequest) -> ToolChoice:
    """The tools that may be called, and whether one must be."""
    wanted = fields.tool_choice
    if wanted is not None and wanted.type == "none":
        return ToolChoice()
    tools = []
    for tool in fields.tools or ():
        if tool.name and tool.input_schema is not None:
            function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
            if tool.description is not None:
                function["description"] = tool.description
            tools.append({"type": "function", "function": function})
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
        elif block.type != "redacted_thinking":
            texts.append(_text(block, f"messages[{number}].content[{i}]"))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(blocks: list[Block], number: int) -> Iterator[Message]:
    """Results of tools are messages of their own."""
    texts: list[str] = []
    for i, block in enumerate(blocks):
        place = f"messages[{number}].content[{i}]"
        if block.type != "tool_result":
            texts.append(_text(block, place))
            continue
        if texts:
            yield {"role": "user", "content": "\n".join(texts)}
            texts = []
        parts = block.content or ""
        if isinstance(parts, list):
            parts = "\n".join(_text(part, f"{place}.content[{j}]") for j, part in enumerate(parts))
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": parts}
    if texts or not blocks:
        yield {"role": "user", "content": "\n".join(texts)}


def _text(block: Block, place: str) -> str:
    if block.type == "text":
        return block.text or ""
    if block.type == "document" and block.source is not None and block.source.type == "text":
        return block.source.data or ""
    raise ApiError(f"{place}.type is {quote(block.type)}; the model reads text only", param=f"{place}.type")
