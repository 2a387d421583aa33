"""Prompts of plain text, in every form that requests have them in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from trigraph.models.errors import quote
from trigraph.runtime.server.backend import Backend
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.prompt import checked_ids, encoded
from trigraph.runtime.server.schema import Ids, Items, Schema, unsupported


class TextPart(Schema):
    """A part of a prompt; texts alone are read."""

    type: str
    text: str | None = None


class PromptObject(Schema):
    """A text as llama-server's clients send it: `prompt_string`, or a list of parts, `content`."""

    prompt_string: str | None = None
    content: Items[TextPart] | None = None
    multimodal_data: Annotated[Any, unsupported("show images in messages, with /v1/chat/completions")] = None


PlainPrompt = str | Ids | Items[str | Annotated[int, Field(ge=0)]] | PromptObject
"""A text, token ids, both in turn, or an object."""

PlainPrompts = PlainPrompt | Items[PlainPrompt]
"""One, or several."""


def are_many(given: PlainPrompts) -> bool:
    """Whether these are several prompts: a list of text and ids that is one prompt has at least one id."""
    return isinstance(given, list) and not any(isinstance(part, int) for part in given)


def plain_prompts(engine: Backend, given: PlainPrompts, param: str) -> list[list[int]]:
    """The ids of each prompt. Raises ApiError where there is none, or one that the model cannot read.

    `param`: the field that has them.
    """
    prompts: list[Any] = given if isinstance(given, list) and are_many(given) else [given]
    if not prompts:
        raise ApiError(f"{param} is empty; give a text or token ids", param=param)
    return [checked_ids(engine, [*_ids(engine, prompt, param)], param) for prompt in prompts]


def _ids(engine: Backend, prompt: PlainPrompt, param: str) -> Iterator[int]:
    pieces: Sequence[str | int] = [_text(prompt, param)] if isinstance(prompt, PromptObject) else prompt
    for i, piece in enumerate([pieces] if isinstance(pieces, str) else pieces):
        if isinstance(piece, int):
            yield piece
        else:
            yield from encoded(engine, piece, start=i == 0)


def _text(prompt: PromptObject, param: str) -> str:
    if (prompt.prompt_string is None) == (prompt.content is None):
        found = "neither" if prompt.content is None else "both"
        raise ApiError(
            f"{param} has an object with {found} of prompt_string and content; give one of them", param=param
        )
    if prompt.prompt_string is not None:
        return prompt.prompt_string
    for part in prompt.content or ():
        if part.type != "text" or part.text is None:
            raise ApiError(
                f"{param} has a part of type {quote(part.type)}; parts of type text are read, with a text each",
                param=param,
            )
    return "".join(part.text or "" for part in prompt.content or ())
