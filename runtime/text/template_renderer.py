"""The process that renders a chat template: `template_process.py`, with limits on memory and time."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trigraph.models.errors import TrigraphError
from trigraph.runtime.limited.process import LimitedProcess

_PROGRAM = Path(__file__).with_name("template_process.py")
_MAX_SECONDS = 5.0
_MAX_MEMORY = 512 << 20  # bytes of the process
_MAX_STARTING_SECONDS = 60.0


class TemplateError(TrigraphError):
    """A chat template that cannot be rendered, or that refuses the messages."""


class Renderer(LimitedProcess):
    """A process for one template. It starts at once, and can be given the template while it does."""

    def __init__(self) -> None:
        """Raises TemplateError when no process can be started."""
        try:
            super().__init__(_PROGRAM, _MAX_MEMORY)
        except OSError as error:
            raise TemplateError(
                f"the chat template cannot be rendered: {sys.executable} does not start ({error.strerror})"
            ) from error
        self._ready = False

    def render(self, template: Mapping[str, Any], request: bytes) -> dict[str, Any]:
        """The response to a request: its `texts`, or an `error`. `template` is the same each time."""
        if not self._ready:
            description = json.dumps(template).encode() + b"\n"
            if "ready" not in self.ask(description, _MAX_STARTING_SECONDS)[0]:
                raise TemplateError(f"the chat template cannot be rendered: {sys.executable} lacks jinja2")
            self._ready = True
        return self.ask(request, _MAX_SECONDS)[0]
