"""The chat template of a model, rendered in a sandbox: it comes with the model file and is not trusted.

The sandbox of jinja2 keeps a template away from Python, but lets it loop forever or build a string of a terabyte. So it
runs in its own process, with limits on memory and time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from functools import cached_property
from typing import Any

from trigraph.runtime.text.control_names import ControlNames
from trigraph.runtime.text.efforts import EFFORTS, VARIABLE
from trigraph.runtime.text.history import Message as Message
from trigraph.runtime.text.history import as_template_reads
from trigraph.runtime.text.reply_parser import ReplyFormat, ReplyParser
from trigraph.runtime.text.template_renderer import Renderer, TemplateError

_VARIABLES = {"messages", "tools", "documents", "add_generation_prompt"}


class ChatTemplate:
    """Turns messages into the prompt that a model was trained on.

    What is wrong with a template is known when it renders: a model may be used without it.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        control_names: ControlNames | None = None,
        renderer: Renderer | None = None,
        notice: str | None = None,
    ) -> None:
        """`special_tokens`: texts of tokens by template variable (`eos_token`).

        `control_names` are marked as text in messages and tools: control tokens are the template's alone. `renderer`:
        one that nothing else uses, if it has been started already. `notice`: what users of this template should know.
        """
        self.notice = notice
        self.reply_format = ReplyFormat.of_template(source)
        self.source = source
        self._control_names = control_names or ControlNames(())
        self._special_tokens = dict(special_tokens)
        self._renderer = renderer
        self._lock = threading.Lock()  # one request at a time, from whatever thread

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[Any, ...]]:
        """Pickles what it is made of; its process is of this program."""
        return ChatTemplate, (self.source, self._special_tokens, self._control_names, None, self.notice)

    def render(
        self,
        messages: SequenceOf[Message],
        *,
        tools: SequenceOf[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as a prompt; `add_generation_prompt` opens the assistant's next message.

        `tools` are functions by name, description and schema; `variables` are the template's own, like
        `enable_thinking`. Raises TemplateError when the template is malformed or fails, refuses the messages, or
        exceeds a limit on time or size.
        """
        (text,) = self.render_all(
            [messages], tools=tools, variables=variables, add_generation_prompt=add_generation_prompt
        )
        if isinstance(text, TemplateError):
            raise text
        return text

    def render_all(
        self,
        conversations: SequenceOf[SequenceOf[Message]],
        *,
        tools: SequenceOf[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[str | TemplateError]:
        """Each conversation as a prompt, or why it is none; messages that are the same objects are read once."""
        if taken := _VARIABLES & (variables or {}).keys():
            raise TemplateError(f"{min(taken)} is reserved; it cannot be set as a variable of the chat template")
        messages = {id(message): message for conversation in conversations for message in conversation}
        numbers = {key: number for number, key in enumerate(messages)}
        request = {
            "variables": {
                **(variables or {}),
                "tools": self._control_names.as_text(tools) or None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            },
            "messages": self._control_names.as_text(as_template_reads([*messages.values()], self.source)),
            "conversations": [[numbers[id(message)] for message in conversation] for conversation in conversations],
        }
        try:
            line = json.dumps(request).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"the chat template's input cannot be written as JSON ({error})") from error
        with self._lock:
            if self._renderer is None or self._renderer.ended:
                self._renderer = Renderer()
            template = {"source": self.source, "special_tokens": self._special_tokens}
            response = self._renderer.render(template, line)
        found: list[str | TemplateError] = []
        for each in response.get("texts", [response]):
            if "rest" in each:
                found.append(str(found[0])[: each["shared"]] + each["rest"] if found else each["rest"])
            else:
                found.append(TemplateError(f"the chat template failed ({each.get('error')})"))
        found += [found[0]] * (len(conversations) - len(found))
        return found

    @cached_property
    def efforts(self) -> tuple[str, ...]:
        """The reasoning efforts that it takes, found by rendering with each; all where it reads or takes none."""
        if VARIABLE not in self.source:
            return EFFORTS
        question = [{"role": "user", "content": "Hi"}]
        taken = []
        with suppress(TemplateError):
            self.render(question, variables={"enable_thinking": True})
            for effort in EFFORTS:
                with suppress(TemplateError):
                    self.render(question, variables={"enable_thinking": True, VARIABLE: effort})
                    taken.append(effort)
        return tuple(taken) or EFFORTS

    def with_source(self, source: str) -> ChatTemplate:
        """Another template for the same vocabulary."""
        return ChatTemplate(source, self._special_tokens, self._control_names)

    def parser(self, prompt: str, tools: Iterable[Mapping[str, Any]] = ()) -> ReplyParser:
        """Takes the reply to a rendered prompt apart."""
        return ReplyParser(self.reply_format, tools, thinking=self.reply_format.thinks(prompt))
