"""OpenAI's chat completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.images import PART_RULE, part_of_url
from trigraph.runtime.server.job import NO_RECEIPT, Generation, Job, Usage, merged, sent_event
from trigraph.runtime.server.openai.chat_calls import Deltas, said
from trigraph.runtime.server.openai.logprobs import chat_logprobs
from trigraph.runtime.server.openai.schema import ChatMessage, ChatRequest, ContentPart, ImageUrl, ToolCall
from trigraph.runtime.server.openai.usage import openai_usage, prompt_progress, timings
from trigraph.runtime.server.options import choice_options, form, request_options
from trigraph.runtime.server.prompt import ChatPrompt, chat_prompt, template_variables
from trigraph.runtime.server.reply_form import ToolChoice, reply_form
from trigraph.runtime.server.schema import parse
from trigraph.runtime.server.tools import Tools, call_of
from trigraph.runtime.text.template import Message

_FINISH_REASONS = {"call": "tool_calls", "length": "length", "context": "length", "timeout": "length"}
_SHOWING = ("user", "tool", "function")  # roles whose messages may have images
_ROLES = {"developer": "system", "function": "tool"}  # as chat templates call them
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


class ChatCompletion(Job):
    """A request for chat completions."""

    def __init__(self, model: ServedModel, body: bytes) -> None:
        """Raises ApiError or TrigraphError for what is wrong with the request."""
        fields = parse(ChatRequest, body)
        engine = model.engine
        tools, choice = tool_choice(fields)
        prompt = _prompt(model, fields, choice)
        answer = form(fields, fields.response_format)
        self.ignored = tools.notes(prompt.template.reply_format.calls)
        self.logprobs = bool(fields.logprobs)
        self.stream = bool(fields.stream)
        self._fields, self.model = fields, model
        options = request_options(
            fields,
            model,
            max_tokens=next(
                (n for n in (fields.max_completion_tokens, fields.max_tokens, fields.n_predict) if n is not None), None
            ),
            constraint=reply_form(prompt.template.reply_format, choice, answer),
            logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
            receipt=bool(fields.receipt),
            choices=fields.n or 1,
        )
        self.generations = [
            Generation(
                engine.generate(prompt.given, choice_options(options, number), checkpoints=prompt.checkpoints),
                prompt.parser(options.constraint),
                parallel_calls=choice.parallel,
                image_tokens=prompt.image_tokens,
                shares_prompt=number > 0,
            )
            for number in range(fields.n or 1)
        ]
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.settings.model,
            "system_fingerprint": model.fingerprint,
        }
        self._tokenizer = engine.tokenizer
        self._origins = tools.origins

    def written(self) -> dict[str, Any]:
        """The whole answer, once all generations have ended."""
        choices = [
            {
                "index": i,
                "message": said(generation, self._origins),
                "logprobs": self._logprobs(generation, 0),
                "finish_reason": finish_reason(generation),
                **self.receipt(generation, self._fields.receipt),
            }
            for i, generation in enumerate(self.generations)
        ]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self._usage(),
            "timings": timings(self.generations),
        }

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, each whole."""
        for i, generation in enumerate(self.generations):
            generation.announces_prompt = bool(self._fields.return_progress)
            yield self._chunk(i, {"role": "assistant", "content": None})
        sent = [0] * len(self.generations)
        deltas_of = [Deltas(self._origins) for _ in self.generations]
        async for i, events in merged(self.generations):
            if not events:
                yield self._chunk(i, {}, progress=prompt_progress(self.generations[i]))
            deltas = [delta for event in events for delta in deltas_of[i].of(event)]
            logprobs = self._logprobs(self.generations[i], sent[i]) if deltas else None
            sent[i] += len(logprobs["content"]) if logprobs else 0
            for delta in deltas:
                yield self._chunk(i, delta, logprobs)
                logprobs = None
        for i, generation in enumerate(self.generations):
            logprobs, receipt = self._logprobs(generation, sent[i]), self.receipt(generation, self._fields.receipt)
            yield self._chunk(i, {}, logprobs, finish_reason(generation), receipt=receipt)
        if (stream := self._fields.stream_options) is not None and stream.include_usage:
            yield sent_event(
                {
                    **self._head,
                    "object": "chat.completion.chunk",
                    "choices": [],
                    "usage": self._usage(),
                    "timings": timings(self.generations),
                }
            )
        yield b"data: [DONE]\n\n"

    def failed(self, error: ApiError) -> bytes:
        """The event that ends a stream which has failed."""
        return sent_event(error.body("/v1/chat/completions"))

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
        progress: dict[str, Any] | None = None,
        receipt: Mapping[str, Any] = NO_RECEIPT,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish, **receipt}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if (stream := self._fields.stream_options) is not None and stream.continuous_usage_stats:
            chunk["usage"] = self._usage()
        counted = stream is not None and stream.include_usage  # then a chunk of its own has them at the end
        if (self._fields.timings_per_token and "role" not in delta) or (finish is not None and not counted):
            chunk["timings"] = timings(self.generations[index : index + 1])
        if progress is not None:
            chunk["prompt_progress"] = progress
        return sent_event(chunk)

    def _usage(self) -> dict[str, Any]:
        return openai_usage(Usage.of(self.generations, len(self.generations)))

    def _logprobs(self, generation: Generation, start: int) -> dict[str, Any] | None:
        return chat_logprobs(self._tokenizer, generation.logprobs(start)) if self.logprobs else None


def count_chat_tokens(model: ServedModel, body: bytes) -> dict[str, Any]:
    """How many tokens the prompt of a request has. Raises ApiError or TrigraphError for what is wrong with it."""
    fields = parse(ChatRequest, body)
    prompt = _prompt(model, fields, tool_choice(fields)[1], counted=True)
    return {"object": "response.input_tokens", "input_tokens": len(prompt.ids)}


def finish_reason(generation: Generation) -> str:
    """Why a generation has ended, as OpenAI says it."""
    return _FINISH_REASONS.get(generation.finish_reason, "stop")


def as_message(message: ChatMessage, number: int) -> Message:
    """A message as chat templates take it, with its images. Raises ApiError for parts of another kind."""
    content: Any = message.content
    if isinstance(content, list):
        shows = message.role in _SHOWING
        content = [_part(part, f"messages[{number}].content[{i}]", shows=shows) for i, part in enumerate(content)]
    made: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": content}
    for name in ("reasoning_content", "tool_call_id", "name"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    calls = [*(message.tool_calls or ())]
    if message.function_call is not None:
        calls.append(ToolCall(function=message.function_call))
    if calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": function}
            for call in calls
            if (function := _function(call)) is not None
        ]
    return made


def _function(call: ToolCall) -> dict[str, Any] | None:
    """The function of a call, of a custom tool's as well."""
    if call.custom is not None:
        return call_of(call.custom.name, None, call.custom.input)
    return None if call.function is None else call.function.model_dump()


def _part(part: ContentPart, place: str, *, shows: bool) -> dict[str, Any]:
    """`shows`: whether its message may have images."""
    if part.type == "image_url" and shows:
        image = part.image_url
        return part_of_url(image.url if isinstance(image, ImageUrl) else image, f"{place}.image_url.url")
    if part.type not in _TEXT_PARTS:
        raise ApiError(f"{place}.type is {quote(part.type)}; {PART_RULE}", param=f"{place}.type")
    return {"type": "text", "text": part.text or part.refusal or ""}


def _prompt(model: ServedModel, fields: ChatRequest, choice: ToolChoice, *, counted: bool = False) -> ChatPrompt:
    messages = [as_message(message, i) for i, message in enumerate(fields.messages)]
    variables = template_variables(fields.chat_template_kwargs, fields.reasoning_effort)
    return chat_prompt(model, messages, choice.tools, variables, counted=counted)


def tool_choice(fields: ChatRequest) -> tuple[Tools, ToolChoice]:
    """The tools of a request, and which of them may and must be called."""
    tools = Tools.of(tool.flat() for tool in fields.tools or ())
    wanted = fields.tool_choice
    flat = wanted if wanted is None or isinstance(wanted, str) else wanted.flat()
    return tools, tools.choice(flat, parallel=fields.parallel_tool_calls is not False)
