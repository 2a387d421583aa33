"""From the messages of a request to the prompt that the model continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.prefix import common_prefix
from trigraph.runtime.server.backend import Backend
from trigraph.runtime.server.service import Service
from trigraph.runtime.text.control_names import MARK
from trigraph.runtime.text.reply_parser import ReplyParser
from trigraph.runtime.text.template import ChatTemplate, Message

_UNKNOWN = "\N{SYMBOL FOR NULL}"  # stands for what will be said
_THOUGHT_END = "\n</think>\n\n"


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as the model reads it. `checkpoints`: lengths that the prompts of later turns begin with."""

    ids: list[int]
    checkpoints: tuple[int, ...]
    thinking: bool
    """Whether the prompt opens a thought, so that the reply begins within it."""
    template: ChatTemplate
    tools: Sequence[Mapping[str, Any]]

    def parser(self) -> ReplyParser:
        """What takes a reply to it apart."""
        return ReplyParser(self.template.reply_format, self.tools, thinking=self.thinking)


def chat_prompt(
    service: Service,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> ChatPrompt:
    """The prompt for the next message; a last message of the assistant's own is continued, or its thought.

    `variables`: those of the template that the request sets. Raises TrigraphError when the model has no chat template,
    or it refuses the messages.
    """
    engine, settings = service.engine, service.settings
    variables = {**settings.template_variables, **(variables or {})}
    template = settings.template or engine.chat_template()
    messages = _one_system_message(messages)
    thought = said = ""
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        as_text = engine.tokenizer.control_names.as_text
        thought, said = as_text(messages[-1].get("reasoning_content") or ""), as_text(_text(messages[-1]))
        messages = messages[:-1]
    text = template.render(messages, tools=tools, variables=variables)
    thinking = template.reply_format.thinks(text)
    if thinking:
        text += thought + (_THOUGHT_END if said else "")
    text += said
    thinking = thinking and not said
    ids = engine.tokenizer.encode(text)
    later = [[*messages, _message("assistant"), _message("user")]]
    if messages and messages[0]["role"] == "system":  # which other conversations may begin with
        later.append([messages[0], _message("user")])
    checkpoints = []
    for others in later:
        with suppress(TrigraphError):  # refused: say, it wants no two turns, and there will be none
            common = common_prefix(text, template.render(others, tools=tools, variables=variables))
            checkpoints.append(len(ids) - _tokens_of_end(engine, ids, len(text[common:].replace(MARK, "").encode())))
    return ChatPrompt(ids, tuple(checkpoints), thinking, template, tools)


def template_variables(given: Mapping[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """The variables that a request sets by themselves, and by how much it wants the model to reason."""
    variables = dict(given or {})
    if effort is not None:
        variables.setdefault("reasoning_effort", effort)
        if effort == "none":
            variables.setdefault("enable_thinking", False)
    return variables


def _tokens_of_end(engine: Backend, ids: list[int], size: int) -> int:
    """How many of the last ids have any of the last `size` bytes of the text."""
    count = 0
    while size > 0 and count < len(ids):
        count += 1
        size -= len(engine.tokenizer.spell([ids[-count]]).encode())
    return count


def _one_system_message(messages: Sequence[Message]) -> list[Message]:
    """The messages with the system's at the beginning joined: most templates take one."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    if count < 2:
        return [*messages]
    return [{"role": "system", "content": "\n\n".join(map(_text, messages[:count]))}, *messages[count:]]


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


def _message(role: str) -> Message:
    return {"role": role, "content": _UNKNOWN}
