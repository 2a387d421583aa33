"""Options of what the chat template is given, and of what becomes of the reply."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer

from trigraph.models.errors import TrigraphError, quote
from trigraph.runtime.cli.arguments import read_text
from trigraph.runtime.text.template import ChatTemplate
from trigraph.runtime.text.tool_arguments import parameters_of

if TYPE_CHECKING:
    from trigraph.runtime.server.backend import Backend

_T = TypeVar("_T")


@dataclass(frozen=True)
class TemplateArguments:
    """What the chat template is given, and how long a reply may think."""

    panel: ClassVar = "Reasoning and tools"
    common: ClassVar = ("think",)

    think: Annotated[
        bool | None, typer.Option("--think/--no-think", help="Ask for reasoning, or for none (default: the template's)")
    ] = None
    reasoning_budget: Annotated[
        int | None, typer.Option(help="Maximum number of reasoning tokens (default: unlimited)")
    ] = None
    template_file: Annotated[
        Path | None, typer.Option("--chat-template-file", help="Use the chat template in this file (Jinja).")
    ] = None
    template_kwargs: Annotated[
        str | None,
        typer.Option(
            "--chat-template-kwargs", metavar="JSON", help='Variables of the template: {"preserve_thinking": true}'
        ),
    ] = None

    def variables(self) -> dict[str, Any]:
        """Variables of the template."""
        given = {} if self.template_kwargs is None else _parsed("--chat-template-kwargs", self.template_kwargs, dict)
        return given if self.think is None else {**given, "enable_thinking": self.think}

    def template_of(self, engine: Backend) -> ChatTemplate:
        """The template to use with a model."""
        own = engine.chat_template()
        return own if self.template_file is None else own.with_source(read_text(self.template_file))


@dataclass(frozen=True)
class ReplyArguments:
    """What the reply may call, and what is shown of it."""

    panel: ClassVar = "Reasoning and tools"
    common: ClassVar = ("tools_file",)

    reasoning: Annotated[
        str,
        typer.Option(
            metavar="show|hide",
            help="Whether reasoning is shown, dimmed on a terminal.",
            autocompletion=lambda: ["show", "hide"],
        ),
    ] = "show"
    tools_file: Annotated[
        Path | None, typer.Option("--tools", help="Functions that the model may call: a JSON list in this file.")
    ] = None

    @property
    def hides_reasoning(self) -> bool:
        """Whether to leave reasoning out. Raises TrigraphError for another word than show and hide."""
        if self.reasoning not in ("show", "hide"):
            raise TrigraphError(f"--reasoning is {quote(self.reasoning)}, expected show or hide")
        return self.reasoning == "hide"

    def tools(self) -> list[dict[str, Any]]:
        """The functions of the file. Raises TrigraphError for what is no list of them."""
        if self.tools_file is None:
            return []
        tools: list[dict[str, Any]] = _parsed(str(self.tools_file), read_text(self.tools_file), list)
        parameters_of(tools)
        return tools


def _parsed(name: str, text: str, kind: type[_T]) -> _T:
    """The JSON object (dict) or list that an option or file holds."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TrigraphError(f"{name} is not JSON ({error})") from error
    if not isinstance(value, kind):
        raise TrigraphError(f"{name} must be a JSON {'object' if kind is dict else 'list'}")
    return value
