"""Requests of Anthropic's API: messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trigraph.runtime.server.schema import Items, Object, Sampling, Schema, ToolName


class Source(Schema):
    """Where the content of a document or an image is: here, as text or as base64."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(Schema):
    """A block of content: text, thinking, tool_use, tool_result, tool_reference, or one of the provider's in one."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: str | Object | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: str | Items[Block] | Object | None = None
    source: Source | None = None


class MessageParam(Schema):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Items[Block]


class ToolParam(Schema):
    """A tool; those that run at the provider's are ignored."""

    type: str | None = None
    name: ToolName | None = None
    description: str | None = None
    input_schema: Object | None = None
    strict: bool | None = None


class ToolChoiceParam(Schema):
    """Whether a tool must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Schema):
    """Whether to think, and for how many tokens at most."""

    type: str
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class OutputFormat(Schema):
    """A JSON schema that the reply must be valid against."""

    type: Literal["json_schema"]
    schema_: Annotated[Object, Field(alias="schema")]


class OutputConfig(Schema):
    """How much effort to spend, and the form of the reply."""

    effort: str | None = None
    format: OutputFormat | None = None


class TokensRequest(Schema):
    """A request for the number of tokens of a prompt."""

    model: str | None = None
    messages: Annotated[Items[MessageParam], Field(min_length=1)]
    system: str | Items[Block] | None = None
    tools: Items[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Object | None = None


class MessagesRequest(TokensRequest, Sampling):
    """A request for a message."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Items[str] | None = None
    stream: bool | None = None
