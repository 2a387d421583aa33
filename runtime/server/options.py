"""From the fields of a request to the engine's options."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trigraph.models.errors import quote
from trigraph.runtime.requests.options import Options
from trigraph.runtime.sampling.constraint import Constraint, Grammar, JsonSchema, Regex
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.reply_form import check_strict
from trigraph.runtime.server.schema import Bias, ResponseFormat, Sampling, StructuredOutputs

MOST_LOGPROBS = 4 << 20  # of a request: some 300 bytes each until they are written
_LEAST_TOP_P = 1e-9  # for 0, which others take for the most likely token alone
_MOST_BIASES = 100_000
_MOST_TEXTS = 10_000  # of a request's biases: each is made tokens of
_MOST_STOP_TOKENS = 1000  # each choice has a set of them
_ANY_OBJECT = {"type": "object"}
_BIAS: TypeAdapter[Bias] = TypeAdapter(Bias)


def request_options(
    fields: Sampling,
    model: ServedModel,
    *,
    max_tokens: int | None = None,
    constraint: Constraint | None = None,
    logprobs: int | None = None,
    receipt: bool = False,
    choices: int = 1,
) -> Options:
    """The server's defaults, and what the request says otherwise. `choices`: the completions that it asks for."""
    settings = model.settings
    defaults = settings.defaults.of_model(model.engine.sampling)
    changed: dict[str, Any] = {
        "temperature": fields.temperature,
        "top_k": None if fields.top_k is None else max(0, fields.top_k),
        "top_p": None if fields.top_p is None else max(_LEAST_TOP_P, fields.top_p),
        "min_p": fields.min_p,
        "repeat_penalty": fields.repetition_penalty if fields.repeat_penalty is None else fields.repeat_penalty,
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "penalty_window": fields.repeat_last_n,
        "logit_bias": None if fields.logit_bias is None else _biases(fields.logit_bias, model),
    }
    sampling = replace(
        defaults.chosen_by,
        **{name: value for name, value in changed.items() if value is not None},
        seed=_seed(fields.seed, settings.seed),
    )
    return replace(
        defaults,
        sampling=sampling,
        max_tokens=_recorded(_limit(max_tokens, defaults.max_tokens), model, logprobs, choices),
        stop=defaults.stop if fields.stop is None else _stops(fields.stop),
        stop_tokens=_stop_tokens(fields.stop_token_ids or [], model),
        ignore_eos=defaults.ignore_eos if fields.ignore_eos is None else fields.ignore_eos,
        constraint=defaults.constraint if constraint is None else constraint,
        reasoning_budget=_limit(fields.reasoning_budget, defaults.reasoning_budget),
        draft_tokens=defaults.draft_tokens if fields.draft_tokens is None else fields.draft_tokens,
        draft_p_min=defaults.draft_p_min if fields.draft_p_min is None else fields.draft_p_min,
        logprobs=logprobs,
        receipt=receipt,
    )


def choice_options(options: Options, choice: int) -> Options:
    """The options of one of several completions of a request: each has a seed of its own."""
    seed = (options.chosen_by.seed + choice) % 2**64
    return replace(options, sampling=replace(options.chosen_by, seed=seed))


def form(fields: Sampling, response_format: ResponseFormat | None) -> Constraint | None:
    """The form that the completion must have, if one is asked for. Raises ApiError for several, or an unknown one."""
    found = {
        "grammar": None if fields.grammar is None else Grammar(fields.grammar),
        "json_schema": None if fields.json_schema is None else JsonSchema(fields.json_schema),
        "response_format": _of_response_format(response_format),
        "structured_outputs": _structured("structured_outputs", fields.structured_outputs),
        "guided_*": _structured("guided_*", _guided(fields)),
    }
    forms = [(name, constraint) for name, constraint in found.items() if constraint is not None]
    if len(forms) > 1:
        raise ApiError(f"{' and '.join(name for name, _ in forms)} exclude each other; give one of them")
    return forms[0][1] if forms else None


def _of_response_format(wanted: ResponseFormat | None) -> Constraint | None:
    if wanted is None or wanted.type == "text":
        return None
    found = JsonSchema(_schema(wanted))
    if (wanted.json_schema or wanted).strict:
        check_strict(found.notes, "the schema of the reply", "response_format.json_schema.schema")
    return found


def _guided(fields: Sampling) -> StructuredOutputs:
    return StructuredOutputs(
        json_=fields.guided_json,
        regex=fields.guided_regex,
        choice=fields.guided_choice,
        grammar=fields.guided_grammar,
    )


def _structured(name: str, wanted: StructuredOutputs | None) -> Constraint | None:
    """The form that vLLM's fields ask for. Raises ApiError for several."""
    if wanted is None:
        return None
    forms: list[Constraint] = []
    if wanted.json_ is not None:
        forms.append(JsonSchema(wanted.json_))
    if wanted.json_object:
        forms.append(JsonSchema(_ANY_OBJECT))
    if wanted.regex is not None:
        forms.append(Regex(wanted.regex))
    if wanted.choice:
        texts = (json.dumps(text, ensure_ascii=False) for text in wanted.choice)
        forms.append(Grammar(f"start: {' | '.join(texts)}"))
    if wanted.grammar is not None:
        forms.append(Grammar(wanted.grammar))
    if len(forms) > 1:
        raise ApiError(f"{name} has several forms; give one of them", param=name)
    return forms[0] if forms else None


def _schema(wanted: ResponseFormat) -> Mapping[str, Any]:
    if wanted.type == "json_object":
        return _ANY_OBJECT if wanted.schema_ is None else wanted.schema_
    if wanted.type != "json_schema":
        raise ApiError(
            f"response_format.type is {quote(wanted.type)}; it must be text, json_object or json_schema",
            param="response_format.type",
        )
    schema = wanted.schema_ if wanted.json_schema is None else wanted.json_schema.schema_
    if schema is None:
        raise ApiError(
            "response_format.json_schema.schema is missing; give a JSON schema",
            param="response_format.json_schema.schema",
            code="missing_required_parameter",
        )
    return schema


def _seed(wanted: int | None, default: int | None) -> int:
    seed = default if wanted is None else wanted
    return secrets.randbits(32) if seed is None or seed == -1 else seed


def _limit(wanted: int | None, default: int | None) -> int | None:
    """A number of tokens; -1 is as many as there may be."""
    return default if wanted is None else None if wanted == -1 else wanted


def _recorded(limit: int | None, model: ServedModel, logprobs: int | None, choices: int) -> int | None:
    """As many tokens, or those whose log-probabilities are kept where these are fewer."""
    if logprobs is None:
        return limit
    most = MOST_LOGPROBS // (choices * (1 + logprobs))
    return limit if most >= (model.engine.context if limit is None else limit) else most


def _stops(stop: str | list[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > 64 or any(len(text) > 1000 for text in stops):
        raise ApiError("stop has too much; give at most 64 strings of 1,000 characters", param="stop")
    return stops


def _biases(given: dict[str, Any] | list[Any], model: ServedModel) -> tuple[tuple[int, float], ...]:
    """Pairs of a token id and its bias; those of a text are for each of its tokens, and false bans them."""
    if len(given) > _MOST_BIASES:
        raise ApiError(f"logit_bias has {len(given):,} items; give at most {_MOST_BIASES:,}", param="logit_bias")
    pairs = _pairs(given)
    if (texts := sum(isinstance(token, str) for token, _ in pairs)) > _MOST_TEXTS:
        raise ApiError(
            f"logit_bias has {texts:,} texts; give at most {_MOST_TEXTS:,}, or token ids", param="logit_bias"
        )
    encode = model.engine.tokenizer.encode
    found: list[tuple[int, float]] = []
    for token, bias in pairs:
        if bias is True:
            raise ApiError("logit_bias has true; give a number, or false to ban a token", param="logit_bias")
        ids = encode(token, start=False, most=_MOST_BIASES) if isinstance(token, str) else [token]
        if not ids:
            raise ApiError("logit_bias has an empty text; give a token id or a text", param="logit_bias")
        found += [(one, -math.inf if bias is False else bias) for one in ids]
        if len(found) > _MOST_BIASES:
            raise ApiError(
                f"logit_bias is for more than {_MOST_BIASES:,} tokens; give fewer, or shorter texts", param="logit_bias"
            )
    return tuple(found)


def _pairs(given: dict[str, Any] | list[Any]) -> list[Bias]:
    """The items, read to the first that is wrong."""
    pairs = []
    for item in ((_token(key), bias) for key, bias in given.items()) if isinstance(given, dict) else given:
        try:
            pairs.append(_BIAS.validate_python(item))
        except ValidationError:
            raise ApiError(
                f"logit_bias has {quote(item)}; give pairs of a token id or a text, and a number or false",
                param="logit_bias",
            ) from None
    return pairs


def _token(key: str) -> int | str:
    """The id that a key of an object spells, or its text."""
    return int(key) if key.isascii() and key.isdigit() and len(key) < 19 else key


def _stop_tokens(ids: list[int], model: ServedModel) -> tuple[int, ...]:
    if len(ids) > _MOST_STOP_TOKENS:
        raise ApiError(
            f"stop_token_ids has {len(ids):,} ids; give at most {_MOST_STOP_TOKENS:,}", param="stop_token_ids"
        )
    if (largest := max(ids, default=0)) >= model.engine.vocab:
        raise ApiError(
            f"stop_token_ids has {largest}; ids of this model are from 0 to {model.engine.vocab - 1}",
            param="stop_token_ids",
        )
    return tuple(ids)
