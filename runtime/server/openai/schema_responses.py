"""Requests of OpenAI's Responses API."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from trigraph.runtime.server.schema import Items, Object, Sampling, Schema

CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
KINDS = {"message", "reasoning", "item_reference", *CALLS, *OUTPUTS}
"""The types of items that the model is told of."""


class Part(Schema):
    """A part of an item's content. The `detail` of images changes nothing."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class Item(Schema):
    """An item of the input: a message, reasoning, a call of a function or custom tool, or its output."""

    type: str | None = None
    role: str | None = None
    content: str | Items[Part] | None = None
    summary: Items[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    input: str | None = None
    arguments: str | Object | None = None
    output: str | Items[Part] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_known_kind(cls, given: Any) -> Any:
        """Keeps the type alone of an item that is ignored: its other fields may be anything."""
        kind = given.get("type") if isinstance(given, dict) else None
        return {"type": kind} if isinstance(kind, str) and kind not in KINDS else given


class TextFormat(Schema):
    """The form of the text: text, json_object or json_schema."""

    type: str
    strict: bool | None = None
    schema_: Annotated[Object | None, Field(alias="schema")] = None


class TextConfig(Schema):
    """How the text is to be."""

    format: TextFormat | None = None


class Reasoning(Schema):
    """How much to reason. A summary is not made: reasoning comes in full."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(Sampling):
    """A request for a response. The server keeps none, so `previous_response_id` is refused."""

    model: str | None = None
    input: str | Items[Item]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    tools: Items[Object] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    metadata: Object | None = None
    chat_template_kwargs: Object | None = None
    include: Items[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    previous_response_id: str | None = None
    conversation: str | Object | None = None
    prompt: Object | None = None
    background: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
