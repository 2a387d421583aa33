"""From the fields of a request to the engine's options."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Any

from trigraph.models.errors import quote
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.constraint import Constraint, Grammar, JsonSchema
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.schema import ResponseFormat, Sampling
from trigraph.runtime.server.settings import Settings

_LEAST_TOP_P = 1e-9  # for 0, which others take for the most likely token alone
_ANY_OBJECT = '{"type": "object"}'


def request_options(
    fields: Sampling,
    settings: Settings,
    *,
    max_tokens: int | None = None,
    constraint: Constraint | None = None,
    logprobs: int | None = None,
) -> Options:
    """The server's defaults, and what the request says otherwise."""
    defaults = settings.defaults
    changed: dict[str, Any] = {
        "temperature": fields.temperature,
        "top_k": None if fields.top_k is None else max(0, fields.top_k),
        "top_p": None if fields.top_p is None else max(_LEAST_TOP_P, fields.top_p),
        "min_p": fields.min_p,
        "repeat_penalty": fields.repetition_penalty if fields.repeat_penalty is None else fields.repeat_penalty,
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "penalty_window": fields.repeat_last_n,
        "logit_bias": None if fields.logit_bias is None else _biases(fields.logit_bias),
    }
    sampling = replace(
        defaults.sampling,
        **{name: value for name, value in changed.items() if value is not None},
        seed=_seed(fields.seed, settings.seed),
    )
    return replace(
        defaults,
        sampling=sampling,
        max_tokens=_limit(max_tokens, defaults.max_tokens),
        stop=defaults.stop if fields.stop is None else _stops(fields.stop),
        ignore_eos=defaults.ignore_eos if fields.ignore_eos is None else fields.ignore_eos,
        constraint=defaults.constraint if constraint is None else constraint,
        reasoning_budget=_limit(fields.reasoning_budget, defaults.reasoning_budget),
        draft_tokens=defaults.draft_tokens if fields.draft_tokens is None else fields.draft_tokens,
        draft_p_min=defaults.draft_p_min if fields.draft_p_min is None else fields.draft_p_min,
        logprobs=logprobs,
    )


def choice_options(options: Options, choice: int) -> Options:
    """The options of one of several completions of a request: each has a seed of its own."""
    seed = (options.sampling.seed + choice) % 2**64
    return replace(options, sampling=replace(options.sampling, seed=seed))


def form(fields: Sampling, response_format: ResponseFormat | None) -> Constraint | None:
    """The form that the completion must have, if one is asked for. Raises ApiError for several, or an unknown one."""
    forms: list[Constraint] = []
    if fields.grammar is not None:
        forms.append(Grammar(fields.grammar))
    if fields.json_schema is not None:
        forms.append(JsonSchema(json.dumps(fields.json_schema)))
    if response_format is not None and response_format.type != "text":
        forms.append(JsonSchema(_schema(response_format)))
    if len(forms) > 1:
        raise ApiError("grammar, json_schema and response_format exclude each other; give one of them")
    return forms[0] if forms else None


def _schema(wanted: ResponseFormat) -> str:
    if wanted.type == "json_object":
        return _ANY_OBJECT if wanted.schema_ is None else json.dumps(wanted.schema_)
    if wanted.type != "json_schema":
        raise ApiError(
            f"response_format.type is {quote(wanted.type)}; it must be text, json_object or json_schema",
            param="response_format.type",
            code="invalid_value",
        )
    schema = wanted.schema_ if wanted.json_schema is None else wanted.json_schema.schema_
    if schema is None:
        raise ApiError(
            "response_format.json_schema.schema is missing; give a JSON schema",
            param="response_format.json_schema.schema",
            code="missing_required_parameter",
        )
    return json.dumps(schema)


def _seed(wanted: int | None, default: int | None) -> int:
    seed = default if wanted is None else wanted
    return secrets.randbits(32) if seed is None or seed == -1 else seed


def _limit(wanted: int | None, default: int | None) -> int | None:
    """A number of tokens; -1 is as many as there may be."""
    return default if wanted is None else None if wanted == -1 else wanted


def _stops(stop: str | list[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > 64 or any(len(text) > 1000 for text in stops):
        raise ApiError(
            "stop has too much; give at most 64 strings of 1,000 characters", param="stop", code="invalid_value"
        )
    return stops


def _biases(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for token in biases:
        if not (token.isascii() and token.isdigit() and len(token) < 19):
            raise ApiError(
                f"logit_bias has {quote(token)}; its keys must be token ids, such as 15043",
                param="logit_bias",
                code="invalid_value",
            )
    return tuple((int(token), bias) for token, bias in biases.items())
