"""OpenAI's completions: plain text, without a chat template."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from trigraph.runtime.requests.logprobs import scoring
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.fill_in_middle import fill_in_middle
from trigraph.runtime.server.job import Generation, Job, Usage, merged, sent_event
from trigraph.runtime.server.openai.chat_completions import finish_reason
from trigraph.runtime.server.openai.logprobs import completion_logprobs, prompt_logprobs
from trigraph.runtime.server.openai.schema import CompletionRequest
from trigraph.runtime.server.openai.usage import openai_usage, timings
from trigraph.runtime.server.options import MOST_LOGPROBS, choice_options, form, request_options
from trigraph.runtime.server.plain_prompt import plain_prompts
from trigraph.runtime.server.prompt import checked_ids
from trigraph.runtime.server.schema import parse
from trigraph.runtime.text.reply import Content, Event

_MOST = 128  # completions of a request


class Completion(Job):
    """A request for completions."""

    def __init__(self, model: ServedModel, body: bytes) -> None:
        """Raises ApiError or TrigraphError for what is wrong with the request."""
        fields = parse(CompletionRequest, body)
        self.model, self._engine = model, model.engine
        self._choices = fields.n or 1
        if fields.best_of is not None and fields.best_of > self._choices:
            raise ApiError(
                f"best_of is {fields.best_of}, and this server ranks no completions; ask for n, and choose",
                param="best_of",
                code="unsupported_parameter",
            )
        prompts = self._filled_in(fields) if fields.suffix else plain_prompts(self._engine, fields.prompt, "prompt")
        if len(prompts) * self._choices > _MOST:
            raise ApiError(
                f"prompt and n ask for {len(prompts) * self._choices} completions; at most {_MOST} are made at once",
                param="prompt",
            )
        if fields.echo and fields.logprobs is not None:
            self._check_echo(sum(map(len, prompts)) * self._choices * (1 + fields.logprobs))
        self.stream = bool(fields.stream)
        self._stream_options = fields.stream_options
        self._logprobs, self._receipt = fields.logprobs, fields.receipt
        self._timed = bool(fields.timings_per_token)
        options = request_options(
            fields,
            model,
            max_tokens=fields.max_tokens if fields.n_predict is None else fields.n_predict,
            constraint=form(fields, fields.response_format),
            logprobs=fields.logprobs,
            receipt=bool(fields.receipt),
            choices=len(prompts) * self._choices,
        )
        self._completions = [
            Generation(model.engine.generate(prompt, choice_options(options, choice)), shares_prompt=choice > 0)
            for prompt in prompts
            for choice in range(self._choices)
        ]
        self._scores = []
        if fields.echo and fields.logprobs is not None:
            self._scores = [Generation(model.engine.generate(*scoring(ids, fields.logprobs))) for ids in prompts]
        self.generations = [*self._scores, *self._completions]
        self._echoed = [
            self._engine.tokenizer.spell(generation.request.prompt) if fields.echo else ""
            for generation in self._completions
        ]
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.settings.model,
            "system_fingerprint": model.fingerprint,
        }

    def written(self) -> dict[str, Any]:
        """The whole answer, once all generations have ended."""
        choices = []
        for i, generation in enumerate(self._completions):
            echoed = self._echoed_logprobs(i)
            offset = len(self._echoed[i]) if echoed is None else sum(map(len, echoed["tokens"]))
            choice = self._choice(i, self._echoed[i] + generation.text, 0, offset, finish_reason(generation))
            if echoed is not None:
                choice["logprobs"] = {name: [*echoed[name], *more] for name, more in choice["logprobs"].items()}
            choices.append({**choice, **self.receipt(generation, self._receipt)})
        return {**self._head, "choices": choices, "usage": self._usage(), "timings": timings(self._completions)}

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, each whole."""
        tokens, offsets = [0] * len(self._completions), [*map(len, self._echoed)]
        async for _ in merged(self._scores):
            pass
        for i, echoed in enumerate(self._echoed):
            if echoed:
                choice = self._choice(i, echoed, None, 0, None)
                if given := self._echoed_logprobs(i):
                    choice["logprobs"], offsets[i] = given, sum(map(len, given["tokens"]))
                yield self._chunk(choice)
        async for i, events in merged(self._completions):
            choice = self._choice(i, _text(events), tokens[i], offsets[i], None)
            if given := choice["logprobs"]:  # counted before it is sent: more tokens may come meanwhile
                tokens[i] += len(given["tokens"])
                offsets[i] += sum(map(len, given["tokens"]))
            yield self._chunk(choice)
        for i, generation in enumerate(self._completions):
            choice = self._choice(i, "", tokens[i], offsets[i], finish_reason(generation))
            yield self._chunk({**choice, **self.receipt(generation, self._receipt)})
        if self._stream_options is not None and self._stream_options.include_usage:
            last = {"choices": [], "usage": self._usage(), "timings": timings(self._completions)}
            yield sent_event({**self._head, **last})
        yield b"data: [DONE]\n\n"

    def failed(self, error: ApiError) -> bytes:
        """The event that ends a stream which has failed."""
        return sent_event(error.body("/v1/completions"))

    @staticmethod
    def _check_echo(logprobs: int) -> None:
        if logprobs > MOST_LOGPROBS:
            raise ApiError(
                f"echo asks for {logprobs:,} log-probabilities of prompts, more than the limit of {MOST_LOGPROBS:,}; "
                "send fewer prompts, or lower logprobs or n",
                param="echo",
            )

    def _filled_in(self, fields: CompletionRequest) -> list[list[int]]:
        """The ids of each prompt, to be continued up to the suffix."""
        prompts = []
        for text in [fields.prompt] if isinstance(fields.prompt, str) else fields.prompt:
            if not isinstance(text, str):
                raise ApiError("suffix needs a prompt that is a text", param="suffix")
            ids = fill_in_middle(self._engine, text, fields.suffix or "", param="suffix")
            prompts.append(checked_ids(self._engine, ids, "prompt"))
        return prompts

    def _choice(self, index: int, text: str, start: int | None, offset: int, finish: str | None) -> dict[str, Any]:
        """`start`: the first token whose log-probability is given; `offset`: where the text stands in all of it."""
        logprobs = None
        if self._logprobs is not None and start is not None:
            found = self._completions[index].logprobs(start)
            logprobs = completion_logprobs(self._engine.tokenizer, found, offset)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _echoed_logprobs(self, index: int) -> dict[str, Any] | None:
        """The log-probabilities of a choice's prompt, where they are asked for."""
        if not self._scores:
            return None
        score = self._scores[index // self._choices]
        return prompt_logprobs(self._engine.tokenizer, score.request.prompt[0], score.logprobs())

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        chunk = {**self._head, "choices": [choice]}
        if self._stream_options is not None and self._stream_options.continuous_usage_stats:
            chunk["usage"] = self._usage()
        index, ended = choice["index"], choice["finish_reason"] is not None
        counted = self._stream_options is not None and self._stream_options.include_usage
        if self._timed or (ended and not counted):  # else a chunk of its own has them at the end
            chunk["timings"] = timings(self._completions[index : index + 1])
        return sent_event(chunk)

    def _usage(self) -> dict[str, Any]:
        return openai_usage(Usage.of(self._completions, self._choices))


def _text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))
