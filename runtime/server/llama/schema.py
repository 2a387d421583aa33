"""Requests of llama-server's own API."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from trigraph.runtime.server.openai.schema import ChatMessage, Tool
from trigraph.runtime.server.plain_prompt import PlainPrompts
from trigraph.runtime.server.schema import Items, Object, ReceiptWish, Sampling, Schema, unsupported


class NativeRequest(Sampling):
    """Fields that completions and infill share. `cache_prompt` and `id_slot` change nothing: prompts are cached."""

    n_predict: Annotated[int, Field(ge=-1)] | None = None
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    n_probs: Annotated[int, Field(ge=0, le=100)] = 0
    stream: bool | None = None
    cache_prompt: bool | None = None
    id_slot: int | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[Items[str], Field(max_length=256)] | None = None
    receipt: ReceiptWish | None = None
    lora: Annotated[Any, unsupported("leave it out")] = None


class NativeCompletionRequest(NativeRequest):
    """A request for completions: of a text, of token ids, of both in turn, or of several of these."""

    prompt: PlainPrompts


class OtherText(Schema):
    """Another file of the project."""

    filename: str = "tmp"
    text: str


class InfillRequest(NativeRequest):
    """A request for text between a prefix and a suffix; `prompt` is what it begins with."""

    input_prefix: str
    input_suffix: str
    input_extra: Items[OtherText] | None = None
    prompt: str = ""


class TemplateRequest(Schema):
    """Messages to write as a prompt."""

    messages: Annotated[Items[ChatMessage], Field(min_length=1)]
    tools: Items[Tool] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: Object | None = None
