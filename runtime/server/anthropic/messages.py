"""Anthropic's messages."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from pydantic_core import from_json

from trigraph.runtime.sampling.constraint import JsonSchema
from trigraph.runtime.server.anthropic.history import anthropic_prompt, ignored, tool_choice
from trigraph.runtime.server.anthropic.schema import MessagesRequest, TokensRequest
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.job import Generation, Job, Usage, merged, sent_event
from trigraph.runtime.server.options import form, request_options
from trigraph.runtime.server.reply_form import reply_form
from trigraph.runtime.server.schema import parse
from trigraph.runtime.text.json_text import whole_characters
from trigraph.runtime.text.reply import Arguments, CallBegun, CallEnded, Content, Event, Reasoning

_PATH = "/v1/messages"
_STOP_REASONS = {
    "call": "tool_use",
    "length": "max_tokens",
    "timeout": "max_tokens",
    "context": "model_context_window_exceeded",
}
_SIGNATURE = "unsigned"  # clients want one, and send it back
_OF_TYPE: dict[type[Event], str] = {Reasoning: "thinking", Content: "text", CallBegun: "tool_use"}


class Messages(Job):
    """A request for a message."""

    def __init__(self, model: ServedModel, body: bytes) -> None:
        """Raises ApiError or TrigraphError for what is wrong with the request."""
        fields = parse(MessagesRequest, body)
        choice = tool_choice(fields)
        prompt = anthropic_prompt(model, fields, choice)
        if fields.stop_sequences is not None:
            fields.stop = fields.stop_sequences
        if fields.thinking is not None and fields.reasoning_budget is None:
            fields.reasoning_budget = fields.thinking.budget_tokens
        answer = form(fields, None)
        if fields.output_config is not None and fields.output_config.format is not None:
            answer = JsonSchema(fields.output_config.format.schema_)
        options = request_options(
            fields,
            model,
            max_tokens=fields.max_tokens,
            constraint=reply_form(prompt.template.reply_format, choice, answer),
        )
        request = model.engine.generate(prompt.given, options, checkpoints=prompt.checkpoints)
        self.generations = [Generation(request, prompt.parser(options.constraint), parallel_calls=choice.parallel)]
        self.model = model
        self.ignored = ignored(fields)
        self.stream = bool(fields.stream)
        self._generation = self.generations[0]
        self._head = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": model.settings.model,
            "container": None,
        }

    def written(self) -> dict[str, Any]:
        """The whole answer, once all generations have ended."""
        return {**self._head, "content": _content(self._generation.events), **self._end(), "usage": self._usage()}

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, each whole."""
        start: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": self._usage(),
        }
        yield _event({"type": "message_start", "message": start})
        yield _event({"type": "ping"})
        blocks = _Blocks()
        async for _, events in merged(self.generations):
            for event in events:
                for data in blocks.take(event):
                    yield _event(data)
        for data in blocks.close():
            yield _event(data)
        yield _event({"type": "message_delta", "delta": self._end(), "usage": self._usage()})
        yield _event({"type": "message_stop"})

    def failed(self, error: ApiError) -> bytes:
        """The event that ends a stream which has failed."""
        return _event(error.body(_PATH))

    def _end(self) -> dict[str, Any]:
        reason = _STOP_REASONS.get(self._generation.finish_reason, "end_turn")
        stop = self._generation.request.stop_string
        if reason == "end_turn" and stop is not None:
            reason = "stop_sequence"
        stop = stop if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stop, "stop_details": None}

    def _usage(self) -> dict[str, Any]:
        usage = Usage.of(self.generations)
        return {
            "input_tokens": usage.prompt - usage.cached,
            "cache_creation": None,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.completion,
            "output_tokens_details": {"thinking_tokens": usage.reasoning},
            "server_tool_use": None,
            "service_tier": "standard",
            "inference_geo": None,
        }


def count_tokens(model: ServedModel, body: bytes) -> dict[str, Any]:
    """How many tokens a prompt has. Raises ApiError or TrigraphError for what is wrong with the request."""
    fields = parse(TokensRequest, body)
    return {"input_tokens": len(anthropic_prompt(model, fields, tool_choice(fields), counted=True).ids)}


class _Blocks:
    """The events of blocks of content, one after the other."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def take(self, event: Event) -> Iterator[dict[str, Any]]:
        """What an event of the reply adds."""
        kind = _OF_TYPE.get(type(event))
        if kind is not None and (kind == "tool_use" or kind != self._open):
            yield from self.close()
            self._index, self._open = self._index + 1, kind
            yield {"type": "content_block_start", "index": self._index, "content_block": _begun(event)}
        match event:
            case Reasoning():
                yield self._delta("thinking_delta", thinking=event.text)
            case Content():
                yield self._delta("text_delta", text=event.text)
            case Arguments():
                yield self._delta("input_json_delta", partial_json=event.text)
            case CallEnded():
                yield from self.close()

    def close(self) -> Iterator[dict[str, Any]]:
        """Ends the block that is open, if one is."""
        if self._open == "thinking":
            yield self._delta("signature_delta", signature=_SIGNATURE)
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = None

    def _delta(self, kind: str, **content: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, **content}}


def _begun(event: Event) -> dict[str, Any]:
    """The block that begins with an event, still empty."""
    match event:
        case Reasoning():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case CallBegun():
            return {"type": "tool_use", "id": event.id, "name": event.name, "input": {}, "caller": {"type": "direct"}}
        case _:
            return {"type": "text", "text": "", "citations": None}


def _content(events: list[Event]) -> list[dict[str, Any]]:
    """All blocks of a message. A call that was cut off has no arguments: any object would look whole."""
    blocks: list[dict[str, Any]] = []
    arguments = ""
    for event in events:
        kind = _OF_TYPE.get(type(event))
        if kind is not None and (kind == "tool_use" or not blocks or blocks[-1]["type"] != kind):
            blocks.append(_begun(event))
        match event:
            case Reasoning():
                blocks[-1]["thinking"] += event.text
                blocks[-1]["signature"] = _SIGNATURE
            case Content():
                blocks[-1]["text"] += event.text
            case CallBegun():
                arguments = ""
            case Arguments():
                arguments += event.text
            case CallEnded():
                blocks[-1]["input"], arguments = _object(arguments), ""
    return blocks


def _object(arguments: str) -> dict[str, Any]:
    """The arguments of a call as a model may have written them."""
    try:
        found = _finite(from_json(whole_characters(arguments)))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _finite(value: Any) -> Any:
    """A JSON value with numbers of at most what a double holds: an answer with an infinite one cannot be written."""
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case float():
            if value != value:
                raise ValueError("NaN is not JSON")
            return max(-sys.float_info.max, min(sys.float_info.max, value))
    return value


def _event(data: dict[str, Any]) -> bytes:
    return sent_event(data, data["type"])
