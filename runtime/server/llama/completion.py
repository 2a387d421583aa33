"""llama-server's own completions, and infill."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from trigraph.runtime.requests.logprobs import TokenLogprob
from trigraph.runtime.requests.options import Options
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.fill_in_middle import fill_in_middle
from trigraph.runtime.server.job import Generation, Job, merged, sent_event
from trigraph.runtime.server.llama.schema import InfillRequest, NativeCompletionRequest, NativeRequest
from trigraph.runtime.server.openai.logprobs import logprob_entry
from trigraph.runtime.server.openai.usage import prompt_progress, timings
from trigraph.runtime.server.options import choice_options, form, request_options
from trigraph.runtime.server.plain_prompt import are_many, plain_prompts
from trigraph.runtime.server.prompt import check_length, encoded
from trigraph.runtime.server.schema import parse
from trigraph.runtime.text.reply import Content

_MOST = 128  # completions of a request
_DEEPEST = 8  # of the objects in an answer
_STOP_TYPES = {"stop": "eos", "length": "limit", "context": "limit", "timeout": "limit"}


def native_completion(model: ServedModel, body: bytes) -> Job:
    """A request for completions. Raises ApiError or TrigraphError for what is wrong with it."""
    fields = parse(NativeCompletionRequest, body)
    prompts = plain_prompts(model.engine, fields.prompt, "prompt")
    return NativeCompletion(model, fields, prompts, many=are_many(fields.prompt))


def infill(model: ServedModel, body: bytes) -> Job:
    """A request for text in the middle. Raises ApiError or TrigraphError for what is wrong with it."""
    fields = parse(InfillRequest, body)
    prompt = fill_in_middle(
        model.engine,
        fields.input_prefix,
        fields.input_suffix,
        begun=encoded(model.engine, fields.prompt, start=False),
        others=[(other.filename, other.text) for other in fields.input_extra or ()],
        room=max(0, fields.n_predict or 0),
        param="input_prefix",
    )
    check_length(model.engine, prompt, "input_prefix")
    return NativeCompletion(model, fields, [prompt])


class NativeCompletion(Job):
    """Completions as llama-server writes them: the object itself, or a list where several are asked for."""

    def __init__(
        self, model: ServedModel, fields: NativeRequest, prompts: Sequence[list[int]], *, many: bool = False
    ) -> None:
        choices = fields.n or 1
        if len(prompts) * choices > _MOST:
            raise ApiError(
                f"prompt asks for {len(prompts) * choices} completions; at most {_MOST} are made at once",
                param="prompt",
            )
        options = request_options(
            fields,
            model,
            max_tokens=fields.max_tokens if fields.n_predict is None else fields.n_predict,
            constraint=form(fields, None),
            logprobs=fields.n_probs or None,
            receipt=bool(fields.receipt),
            choices=len(prompts) * choices,
        )
        self.generations = [
            Generation(model.engine.generate(prompt, choice_options(options, choice)), shares_prompt=choice > 0)
            for prompt in prompts
            for choice in range(choices)
        ]
        self.stream = bool(fields.stream)
        self._fields = fields
        self._many = many or choices > 1
        self._settings = generation_settings(options)  # once: all choices have the same
        self._chosen = {path: path.split("/", _DEEPEST) for path in fields.response_fields or ()}
        self.model = model
        self._sent = [0] * len(self.generations)

    def written(self) -> Any:
        """The whole answer, once all generations have ended."""
        found = [self._last(i, generation.text) for i, generation in enumerate(self.generations)]
        return found if self._many else found[0]

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, each whole."""
        for generation in self.generations:
            generation.announces_prompt = bool(self._fields.return_progress)
        async for i, events in merged(self.generations):
            part = self._part(i, "".join(event.text for event in events if isinstance(event, Content)))
            if not events:
                part["prompt_progress"] = prompt_progress(self.generations[i])
            if self._fields.timings_per_token:
                part["timings"] = timings(self.generations[i : i + 1])
            yield sent_event(part)
        for i in range(len(self.generations)):
            yield sent_event(self._last(i, ""))

    def failed(self, error: ApiError) -> bytes:
        """The event that ends a stream which has failed."""
        return sent_event(error.body("/completion"))

    def _part(self, index: int, text: str) -> dict[str, Any]:
        """A piece of a completion: its tokens are those since the piece before."""
        generation, start = self.generations[index], self._sent[index]
        request = generation.request
        tokens = request.ids[start:]
        part = {
            "index": index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": index,
            "tokens_predicted": start + len(tokens),
            "tokens_evaluated": len(request.prompt),
        }
        if self._fields.n_probs:
            spelled = self.model.engine.tokenizer
            found = request.logprobs[start : start + len(tokens)]
            part["completion_probabilities"] = [_probability(spelled, entry) for entry in found]
        self._sent[index] += len(tokens)
        return part

    def _last(self, index: int, text: str) -> dict[str, Any]:
        generation = self.generations[index]
        request, stop = generation.request, generation.request.stop_string
        part = self._part(index, text)
        if not (self._fields.return_tokens or self.stream):
            part["tokens"] = []
        found = {
            **part,
            "stop": True,
            "model": self.model.settings.model,
            "generation_settings": self._settings,
            "prompt": self.model.engine.tokenizer.spell(request.prompt),
            "has_new_line": "\n" in request.text,
            "truncated": generation.finish_reason == "context",
            "stop_type": "word" if stop is not None else _STOP_TYPES.get(generation.finish_reason, "none"),
            "stopping_word": stop or "",
            "tokens_predicted": request.sampled,
            "tokens_cached": len(request.prompt) + len(request.ids),
            "timings": timings(self.generations[index : index + 1]),
            **self.receipt(generation, self._fields.receipt),
        }
        return dict(_selected(found, self._chosen)) if self._chosen else found


def generation_settings(options: Options) -> dict[str, Any]:
    """How tokens are chosen, under llama-server's names."""
    sampling = options.chosen_by
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_last_n": sampling.penalty_window,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": [
            {"token": token, "bias": None if bias == -math.inf else bias} for token, bias in sampling.logit_bias
        ],
        "stop": [*options.stop],
        "max_tokens": -1 if options.max_tokens is None else options.max_tokens,
        "n_predict": -1 if options.max_tokens is None else options.max_tokens,
        "ignore_eos": options.ignore_eos,
        "n_probs": options.logprobs or 0,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
    }


def _probability(tokenizer: Any, found: TokenLogprob) -> dict[str, Any]:
    top = [{"id": token, **logprob_entry(tokenizer, token, value)} for token, value in found.top]
    return {"id": found.token, **logprob_entry(tokenizer, found.token, found.logprob), "top_logprobs": top}


def _selected(found: dict[str, Any], chosen: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """The fields that a client asks for; `generation_settings/n_predict` is one within another."""
    for path, keys in chosen.items():
        value: Any = found
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            yield path, value
