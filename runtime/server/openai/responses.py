"""OpenAI's Responses API, without memory of earlier responses."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.job import LIMITS, Generation, Job, Usage, merged, sent_event
from trigraph.runtime.server.openai.logprobs import chat_logprobs
from trigraph.runtime.server.openai.output_logprobs import OutputLogprobs
from trigraph.runtime.server.openai.response_items import ResponseItems
from trigraph.runtime.server.openai.responses_history import ignored_items, input_messages
from trigraph.runtime.server.openai.schema_responses import Reasoning, ResponsesRequest
from trigraph.runtime.server.options import form, request_options
from trigraph.runtime.server.prompt import ChatPrompt, chat_prompt, template_variables
from trigraph.runtime.server.reply_form import ToolChoice, reply_form
from trigraph.runtime.server.schema import ResponseFormat, parse
from trigraph.runtime.server.tools import Tools
from trigraph.runtime.text.reply import Event

_LOGPROBS = "message.output_text.logprobs"


class Responses(Job):
    """A request for a response."""

    def __init__(self, model: ServedModel, body: bytes) -> None:
        """Raises ApiError or TrigraphError for what is wrong with the request."""
        fields = parse(ResponsesRequest, body)
        tools, choice = _tools(fields)
        prompt = _prompt(model, fields, choice)
        logprobs = (fields.top_logprobs or 0) if _LOGPROBS in (fields.include or ()) else None
        options = request_options(
            fields,
            model,
            max_tokens=fields.max_output_tokens,
            constraint=reply_form(prompt.template.reply_format, choice, form(fields, _format(fields))),
            logprobs=logprobs,
        )
        request = model.engine.generate(prompt.given, options, checkpoints=prompt.checkpoints)
        self.generations = [Generation(request, prompt.parser(options.constraint), parallel_calls=choice.parallel)]
        self.model, self.stream = model, bool(fields.stream)
        self.ignored = [*tools.notes(prompt.template.reply_format.calls), *ignored_items(fields)]
        self._items = ResponseItems(tools.origins)
        self._tokenizer = model.engine.tokenizer
        self._logprobs = None if logprobs is None else OutputLogprobs(request, self._tokenizer)
        self._number = 0
        self._head = _head(fields, model) | {
            name: getattr(options.chosen_by, name)
            for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")
        }

    def written(self) -> dict[str, Any]:
        """The whole answer, once all generations have ended."""
        for _ in self._taken(self.generations[0].events):
            pass
        for _ in self._items.close(self._status()):
            pass
        return self._response(self._status())

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, each whole."""
        for state in ("created", "in_progress"):
            yield self._event({"type": f"response.{state}", "response": self._response("in_progress")})
        async for _, events in merged(self.generations):
            for data in self._taken(events):
                yield self._event(data)
        status = self._status()
        for data in self._items.close(status):
            yield self._event(data)
        yield self._event({"type": f"response.{status}", "response": self._response(status)})

    def failed(self, error: ApiError) -> bytes:
        """The event that ends a stream which has failed."""
        failure = {"code": "server_error", "message": error.message}
        return self._event({"type": "response.failed", "response": {**self._response("failed"), "error": failure}})

    def _taken(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        for event in events:
            found = [] if self._logprobs is None else self._logprobs.of(event)
            yield from self._items.take(event, chat_logprobs(self._tokenizer, found)["content"])

    def _status(self) -> str:
        return "incomplete" if self.generations[0].finish_reason in LIMITS else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        done = status not in ("in_progress", "failed")
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if done else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._items.output if done else [],
            "usage": self._usage() if done else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage = Usage.of(self.generations)
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.completion,
        }

    def _event(self, data: dict[str, Any]) -> bytes:
        event = sent_event({**data, "sequence_number": self._number}, data["type"])
        self._number += 1
        return event


def count_input_tokens(model: ServedModel, body: bytes) -> dict[str, Any]:
    """How many tokens an input has. Raises ApiError or TrigraphError for what is wrong with the request."""
    fields = parse(ResponsesRequest, body)
    ids = _prompt(model, fields, _tools(fields)[1], counted=True).ids
    return {"object": "response.input_tokens", "input_tokens": len(ids)}


def _tools(fields: ResponsesRequest) -> tuple[Tools, ToolChoice]:
    tools = Tools.of(fields.tools or ())
    return tools, tools.choice(fields.tool_choice, parallel=fields.parallel_tool_calls is not False)


def _prompt(model: ServedModel, fields: ResponsesRequest, choice: ToolChoice, *, counted: bool = False) -> ChatPrompt:
    _check_stateless(fields)
    messages = input_messages(fields)
    effort = None if fields.reasoning is None else fields.reasoning.effort
    variables = template_variables(fields.chat_template_kwargs, effort)
    return chat_prompt(model, messages, choice.tools, variables, counted=counted, param="input")


def _check_stateless(fields: ResponsesRequest) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        if (value := getattr(fields, name)) is not None:
            raise ApiError(
                f"{name} is {quote(value)}, and this server keeps nothing; send the whole conversation as input",
                param=name,
                code="unsupported_parameter",
            )
    if fields.background:
        raise ApiError(
            "background is true; this server answers at once only: leave it out",
            param="background",
            code="unsupported_parameter",
        )


def _format(fields: ResponsesRequest) -> ResponseFormat | None:
    if fields.text is None or fields.text.format is None:
        return None
    wanted = fields.text.format
    return ResponseFormat(type=wanted.type, strict=wanted.strict, schema_=wanted.schema_)


def _head(fields: ResponsesRequest, model: ServedModel) -> dict[str, Any]:
    """What all states of the response have: every field that the API requires."""
    reasoning = Reasoning() if fields.reasoning is None else fields.reasoning
    format = {"type": "text"}
    if fields.text is not None and fields.text.format is not None:
        format = {"name": "output", **fields.text.format.model_dump(by_alias=True, exclude_none=True)}
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model.settings.model,
        "error": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": reasoning.model_dump(),
        "store": False,
        "background": False,
        "service_tier": "default",
        "safety_identifier": fields.safety_identifier,
        "prompt_cache_key": fields.prompt_cache_key,
        "max_tool_calls": None,
        "top_logprobs": fields.top_logprobs or 0,
        "text": {"format": format},
        "tool_choice": fields.tool_choice or "auto",
        "tools": [_tool(tool) for tool in fields.tools or ()],
        "truncation": "disabled",
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool as it was given; a function with every field that the API requires."""
    defaults = {"description": None, "parameters": None, "strict": None}
    return {**defaults, **tool} if tool.get("type") == "function" else tool
