"""The prompt of `trigraph run`, its images, and the system message."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli.arguments import read_text
from trigraph.runtime.engine.chat import first_messages
from trigraph.runtime.images.prompt import PLACEHOLDER
from trigraph.runtime.text.history import Message


@dataclass(frozen=True)
class PromptArguments:
    """The prompt and the system message."""

    panel: ClassVar = "Prompt"
    common: ClassVar = ("prompt", "file", "image", "system", "raw")

    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt; - reads it from stdin.")] = None
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the prompt from a file.")] = None
    image: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Image that the prompt shows. Repeatable."),
    ] = None
    system: Annotated[str | None, typer.Option("-sys", "--system-prompt", help="System message.")] = None
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt without chat template.")] = False
    prompt_cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Session file: reuse its state for the prefix that the prompt shares with it, and save the new state.",
        ),
    ] = None

    def text(self) -> str | None:
        """The prompt; None for an interactive chat."""
        if self.prompt is not None and self.file is not None:
            raise TrigraphError("--prompt and --file exclude each other")
        if self.file is not None:
            return read_text(self.file)
        if self.prompt == "-" or (self.prompt is None and not (sys.stdin and sys.stdin.isatty())):
            return read_text(None)
        return self.prompt

    def messages(self, text: str) -> list[Message]:
        """The messages of a conversation that begins with this text; images have their places before it."""
        shown = [dict(PLACEHOLDER) for _ in self.image or ()]
        content = [*shown, {"type": "text", "text": text}] if shown else text
        return [*first_messages(self.system), {"role": "user", "content": content}]
