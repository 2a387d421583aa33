"""From the messages of a request to the prompt that the model continues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cache.next_turn import next_turn_checkpoints, next_turns
from trigraph.runtime.images.image import ResizedImage
from trigraph.runtime.images.prompt import ImagePrompt, prompt_with_images, without_images
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.backend import Backend
from trigraph.runtime.server.errors import ApiError, PromptTooLongError
from trigraph.runtime.server.images import read_images
from trigraph.runtime.server.reply_form import ReplyForm
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.control_names import MARK
from trigraph.runtime.text.efforts import NONE, VARIABLE, nearest_effort
from trigraph.runtime.text.reply_parser import ReplyParser
from trigraph.runtime.text.template import ChatTemplate, Message
from trigraph.runtime.text.template_renderer import TemplateError

_MOST_TOKENS = 1 << 17
_MOST_CHARACTERS = 8 << 20
_THOUGHT_END = "\n</think>\n\n"


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as the model reads it. `checkpoints`: lengths that the prompts of later turns begin with."""

    text: str
    """With one image token for each image."""
    given: list[int] | ImagePrompt
    """What the engine is given: its ids, and its images if it has any."""
    checkpoints: tuple[int, ...]
    thinking: bool
    """Whether the prompt opens a thought, so that the reply begins within it."""
    template: ChatTemplate
    tools: Sequence[Mapping[str, Any]]

    @property
    def ids(self) -> list[int]:
        """Its tokens, with an image token for each of an image."""
        return [*self.given.ids] if isinstance(self.given, ImagePrompt) else self.given

    @property
    def image_tokens(self) -> int:
        """How many of them are of images."""
        return sum(image.tokens for image in self.given.images) if isinstance(self.given, ImagePrompt) else 0

    def parser(self, constraint: Constraint | None) -> ReplyParser:
        """What takes a reply to it apart, which keeps to a constraint."""
        closed = isinstance(constraint, ReplyForm)
        return ReplyParser(self.template.reply_format, self.tools, thinking=self.thinking, closed=closed)


def encoded(engine: Backend, text: str, *, start: bool = True) -> list[int]:
    """The ids of a text; of one that is far longer than the context, some more than `most_tokens`."""
    return engine.tokenizer.encode(text, start=start, most=most_tokens(engine))


def most_tokens(engine: Backend) -> int:
    """How many tokens of a text are counted."""
    return max(_MOST_TOKENS, 4 * engine.context)


def check_length(engine: Backend, ids: Sequence[int], param: str, *, counted: bool = False) -> None:
    """Raises ApiError for a prompt that is longer than the context, or has more tokens than are counted.

    `param`: the field that has it.
    """
    most = most_tokens(engine)
    if len(ids) > (most if counted else engine.context):
        raise PromptTooLongError(min(len(ids), most), engine.context, param=param, more=len(ids) > most)


def checked_ids(engine: Backend, ids: list[int], param: str) -> list[int]:
    """The ids of a prompt. Raises ApiError where they are too many, or none of the model's."""
    check_length(engine, ids, param)
    if (largest := max(ids, default=0)) >= engine.vocab:
        raise ApiError(f"{param} has token {largest}; ids of this model are from 0 to {engine.vocab - 1}", param=param)
    return ids


def chat_prompt(
    model: ServedModel,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
    *,
    counted: bool = False,
    param: str = "messages",
) -> ChatPrompt:
    """The prompt for the next message; a last message of the assistant's own is continued, or its thought.

    `variables`: those of the template that the request sets. `counted`: its tokens are counted, and nothing continues
    it. `param`: the field that has the messages. Raises ApiError when the chat template refuses the messages, and for a
    prompt that is longer than the context; for one that is counted, far longer. Images are `SentImage`s.
    """
    engine, settings = model.engine, model.settings
    if _characters([messages, tools, variables]) > _MOST_CHARACTERS:
        raise ApiError(
            f"prompt is too long: messages and tools have more than {_MOST_CHARACTERS:,} characters; shorten them",
            param=param,
            code="context_length_exceeded",
        )
    template = settings.template or engine.chat_template()
    variables = _with_effort(template, settings, variables or {})
    messages = _one_system_message(messages)
    thought = said = ""
    if messages and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        as_text = engine.tokenizer.control_names.as_text
        thought, said = as_text(messages[-1].get("reasoning_content") or ""), as_text(_text(messages[-1]))
        messages = messages[:-1]
    messages, sent = without_images(messages)
    images = read_images(model.images, sent, settings.max_images)
    text, later = _rendered(template, messages, tools, variables, param, turns=not counted)
    thinking = template.reply_format.thinks(text)
    if thinking:
        text += thought + (_THOUGHT_END if said else "")
    text += said
    thinking = thinking and not said
    prompt = _with_images(engine, text, images, param)
    check_length(engine, prompt.ids, param, counted=counted)
    written = prompt.written
    ends = tuple(map(prompt.length_of, next_turn_checkpoints(engine.tokenizer, (text, written), later)))
    return ChatPrompt(text.replace(MARK, ""), prompt if images else written, ends, thinking, template, tools)


def _with_images(engine: Backend, text: str, images: Sequence[ResizedImage], param: str) -> ImagePrompt:
    if not images:
        return ImagePrompt(tuple(encoded(engine, text)))
    try:
        return prompt_with_images(text, engine.tokenizer, images, most=most_tokens(engine))
    except TrigraphError as error:
        raise ApiError(f"{param}: {error}", param=param) from error


def _rendered(
    template: ChatTemplate,
    messages: list[Message],
    tools: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    param: str,
    *,
    turns: bool,
) -> tuple[str, list[str | TemplateError]]:
    """The text of the messages in the first form that the template takes; with `turns`, those of `next_turns` as well.

    Raises ApiError when it takes none.
    """
    refusal = None
    for form in _forms(messages):
        others = next_turns(form, tools) if turns else []
        try:
            text, *later = template.render_all([form, *others], tools=tools, variables=variables)
        except TemplateError as error:
            text = error
        if isinstance(text, str):
            return text, later
        refusal = refusal or text
    raise ApiError(
        f"{param}: {refusal}; change them, or complete plain text with /v1/completions", param=param
    ) from refusal


def _forms(messages: list[Message]) -> Iterator[list[Message]]:
    """The messages; with late ones of the system first; and with an empty one of the user, if they have none.

    A result of a tool that comes first follows one in any case: some templates leave the beginning of its turn out.
    """
    forms = [messages]
    if any(message["role"] == "system" for message in messages[1:]):
        forms.append(_one_system_message(sorted(messages, key=lambda message: message["role"] != "system")))
    if not messages or messages[0]["role"] == "tool":
        forms = [_with_user(form) for form in forms]
    yield from forms
    if all(message["role"] != "user" for form in forms for message in form):
        yield from map(_with_user, forms)


def _with_user(messages: list[Message]) -> list[Message]:
    """The messages with an empty one of the user, after the system's at the beginning."""
    place = 1 if messages and messages[0]["role"] == "system" else 0
    return [*messages[:place], {"role": "user", "content": ""}, *messages[place:]]


def template_variables(given: Mapping[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """The variables that a request sets by themselves, and by how much it wants the model to reason."""
    return {**({} if effort is None else {VARIABLE: effort}), **(given or {})}


def _with_effort(template: ChatTemplate, settings: Settings, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The server's variables and a request's, with an effort that the template takes; `none` turns thinking off."""
    found: dict[str, Any] = {}
    for layer in (settings.template_variables, variables):
        if isinstance(effort := layer.get(VARIABLE), str):
            effort = settings.effort_map.get(effort, effort)
            off = {"enable_thinking": False} if effort == NONE else {}
            found |= {**off, **layer, VARIABLE: effort}
        else:
            found |= layer
    if isinstance(effort := found.get(VARIABLE), str):
        found[VARIABLE] = nearest_effort(effort, template.efforts)
    return found


def _characters(value: Any) -> int:
    """The characters of all strings in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_characters, value)) + sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0


def _one_system_message(messages: Sequence[Message]) -> list[Message]:
    """The messages with the system's at the beginning joined: most templates take one."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    if count < 2:
        return [*messages]
    return [{"role": "system", "content": "\n\n".join(map(_text, messages[:count]))}, *messages[count:]]


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""
