"""Requests of OpenAI's API: chat completions and completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from trigraph.runtime.server.plain_prompt import PlainPrompts
from trigraph.runtime.server.schema import (
    Items,
    Object,
    ReceiptWish,
    ResponseFormat,
    Sampling,
    Schema,
    StreamOptions,
    ToolName,
    unsupported,
)


class ImageUrl(Schema):
    """An image: a data URI, or its bytes in base64. `detail` changes nothing."""

    url: str | None = None
    detail: str | None = None


class ContentPart(Schema):
    """A part of a message's content: text, or an image (`image_url`) in a message of the user or a tool."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None


class FunctionCall(Schema):
    """A function's name and the JSON text of its arguments."""

    name: str
    arguments: str | Object | None = None


class CustomCall(Schema):
    """A custom tool's name and its input."""

    name: str
    input: str = ""


class ToolCall(Schema):
    """A call in an assistant's message."""

    id: str | None = None
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class ChatMessage(Schema):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Items[ContentPart] | None = None
    reasoning_content: Annotated[str | None, Field(validation_alias=AliasChoices("reasoning_content", "reasoning"))] = (
        None
    )
    tool_calls: Items[ToolCall] | None = None
    function_call: FunctionCall | None = None
    tool_call_id: str | None = None
    name: str | None = None


class Function(Schema):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Custom(Schema):
    """A tool whose input is a text, which may have to keep to a grammar."""

    name: ToolName
    description: str | None = None
    format: Object | None = None


class Tool(Schema):
    """A tool; those that are neither functions nor custom are ignored."""

    type: str = "function"
    function: Function | None = None
    custom: Custom | None = None

    def flat(self) -> dict[str, Any]:
        """As the Responses API writes it."""
        tool = self.custom or self.function
        return {"type": self.type, **({} if tool is None else tool.model_dump(exclude_none=True))}


class NamedFunction(Schema):
    """The name of a function or custom tool."""

    name: str


class NamedTool(Schema):
    """The tool that must be called."""

    type: str = "function"
    function: NamedFunction | None = None
    custom: NamedFunction | None = None

    def flat(self) -> dict[str, Any]:
        """As the Responses API writes it."""
        tool = self.custom or self.function
        return {"type": self.type, "name": None if tool is None else tool.name}


class AllowedFunctions(Schema):
    """The functions that may be called, of all tools."""

    mode: Literal["auto", "required"] = "auto"
    tools: Items[NamedTool]


class AllowedTools(Schema):
    """The choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions

    def flat(self) -> dict[str, Any]:
        """As the Responses API writes it."""
        allowed = self.allowed_tools
        return {"type": self.type, "mode": allowed.mode, "tools": [tool.flat() for tool in allowed.tools]}


class ChatRequest(Sampling):
    """A request for chat completions."""

    model: str | None = None
    messages: Annotated[Items[ChatMessage], Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=-1)] | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    receipt: ReceiptWish | None = None
    tools: Items[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | AllowedTools | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    functions: Annotated[Any, unsupported("give tools")] = None
    function_call: Annotated[Any, unsupported("give tool_choice")] = None
    audio: Annotated[Any, unsupported("leave it out")] = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: Object | None = None


class CompletionRequest(Sampling):
    """A request for completions of plain text."""

    model: str | None = None
    prompt: PlainPrompts
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    response_format: ResponseFormat | None = None
    receipt: ReceiptWish | None = None
