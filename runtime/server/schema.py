"""Fields that requests of several APIs have, and how a request is read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, core_schema

from trigraph.models.errors import quote
from trigraph.runtime.server.errors import ApiError

_T = TypeVar("_T", bound="Schema")
_Item = TypeVar("_Item")

# Objects and values take a hundred times the memory of their text: more of them than fit any context are not read.
_MOST_OBJECTS = 300_000
_MOST_VALUES = 1_200_000
_MOST_ITEMS = 10_000

# What pydantic puts into the path of a field beside names and indices: the alternative that it tried.
_ALTERNATIVE = re.compile(r"str|int|float|bool|nullable|.*\[.*|[a-z]+-.*|[A-Z]\w*|constrained.*")


class Schema(BaseModel):
    """A part of a request. What it does not know it ignores, and null is the same as nothing."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, populate_by_name=True)


def unsupported(remedy: str) -> AfterValidator:
    """Marks a field that changes the answer, and that the server does not know how to keep to."""

    def refuse(value: Any) -> Any:
        if value:  # false, 0 and nothing ask for nothing
            raise PydanticCustomError("unsupported", "this server does not support it; {remedy}", {"remedy": remedy})
        return value

    return AfterValidator(refuse)


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise PydanticCustomError("not_finite", "numbers in it should be finite") from None
    return value


@dataclass(frozen=True)
class _Checked:
    """A list or object of at most so many items, read to the first that is wrong.

    An error takes more time and memory than an item.
    """

    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        schema: dict[str, Any] = {**handler(source), "fail_fast": True, "max_length": self.most}
        return schema


Items = Annotated[list[_Item], _Checked(_MOST_ITEMS)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], _Checked(_MOST_VALUES)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Object = Annotated[dict[str, Any], AfterValidator(_finite)]  # of any content; 1e999 and NaN cannot be written again


TOOL_NAME = re.compile(r'[^\s<>"\\]{1,256}')  # as the calls of replies can write it
TOOL_NAME_RULE = "names of tools have at most 256 characters, and no spaces, quotes, backslashes, < or >"


def _tool_name(name: str) -> str:
    if not TOOL_NAME.fullmatch(name):
        raise PydanticCustomError("tool_name", TOOL_NAME_RULE)
    return name


ToolName = Annotated[str, AfterValidator(_tool_name)]
Bias = tuple[int | str, Number | bool]
ReceiptWish = Annotated[bool | Literal["private"], Field(description="private leaves the prompt out")]
"""What a request asks for: none, a receipt, or one without the prompt."""

NoReceipt = Annotated[
    Any, unsupported("leave it out, or ask /v1/chat/completions, /v1/completions or /completion for one")
]
"""The field `receipt` of routes whose answers have none."""


class StructuredOutputs(Schema):
    """The form of the completion, as vLLM names it."""

    json_: Annotated[str | Object | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Items[str] | None = None
    grammar: str | None = None
    structural_tag: Annotated[Any, unsupported("give a grammar")] = None


class Sampling(Schema):
    """How tokens are chosen, as llama-server, vLLM and SGLang name it."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-1, lt=2**64)] | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    # Options check the pairs: a check of 100,000 in one call would let no other thread run for half a second.
    logit_bias: (
        Annotated[
            dict[str, Any] | list[Any],
            WithJsonSchema(TypeAdapter(dict[str, Number | bool] | list[Bias]).json_schema()),
        ]
        | None
    ) = None
    stop: str | Items[str] | None = None
    stop_token_ids: Ids | None = None
    ignore_eos: bool | None = None
    reasoning_budget: Annotated[
        Annotated[int, Field(ge=-1)] | None,
        Field(validation_alias=AliasChoices("reasoning_budget", "thinking_token_budget", "thinking_budget")),
    ] = None
    grammar: str | None = None
    json_schema: Object | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | Object | None = None
    guided_regex: str | None = None
    guided_choice: Items[str] | None = None
    guided_grammar: str | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    min_tokens: Annotated[Any, unsupported("leave it out, or set ignore_eos and max_tokens")] = None
    prompt_logprobs: Annotated[Any, unsupported("leave it out")] = None
    use_beam_search: Annotated[Any, unsupported("leave it out")] = None
    post_sampling_probs: Annotated[Any, unsupported("leave it out: probabilities are the model's own")] = None
    return_token_ids: Annotated[Any, unsupported("leave it out; /tokenize gives the ids of a text")] = None
    return_tokens_as_token_ids: Annotated[Any, unsupported("leave it out")] = None
    draft_tokens: Annotated[int | None, Field(ge=0, alias="speculative.n_max")] = None
    draft_p_min: Annotated[float | None, Field(ge=0, le=1, alias="speculative.p_min")] = None
    receipt: NoReceipt = None


class StreamOptions(Schema):
    """What a stream has beside the completion."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(Schema):
    """The schema of a structured output."""

    name: str | None = None
    strict: bool | None = None
    schema_: Annotated[Object | None, Field(alias="schema")] = None


class ResponseFormat(Schema):
    """The form of the completion: text, json_object or json_schema."""

    type: str
    strict: bool | None = None
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[Object | None, Field(alias="schema")] = None


def parse(kind: type[_T], body: bytes) -> _T:
    """The request in a body. Raises ApiError that names the field at fault, its value, and what it must be."""
    objects = body.count(b"{")
    values = objects + body.count(b"[") + body.count(b",")
    if objects > _MOST_OBJECTS or values > _MOST_VALUES:
        raise ApiError(
            f"the body has {objects:,} braces, and {values:,} with brackets and commas; at most {_MOST_OBJECTS:,} and "
            f"{_MOST_VALUES:,} are read",
            413,
            code="too_large",
        )
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        raise ApiError(f"the body is not JSON: {first['msg'].partition(': ')[2]}", code="invalid_json")
    path = _path(first["loc"])
    wanted = re.sub(r"^(Input|\w+) (?=should)", "it ", first["msg"]).partition(" after validation")[0]
    if first["type"] == "missing":
        raise ApiError(f"{path} is missing; give one", param=path, code="missing_required_parameter")
    raise ApiError(f"{path or 'the body'} is {quote(first['input'])}; {wanted}", param=path or None)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _ALTERNATIVE.fullmatch(part):
            path += f".{part}" if path else part
    return path
