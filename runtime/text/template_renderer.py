"""The process that renders a chat template: `template_process.py`, with limits on memory and time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trigraph.models.errors import TrigraphError

_PROGRAM = Path(__file__).with_name("template_process.py")
_MAX_SECONDS = 5.0
_MAX_MEMORY = 512 << 20  # bytes of the process
_MAX_RESPONSE = 64 << 20  # bytes
_MAX_STARTING_SECONDS = 60.0


class TemplateError(TrigraphError):
    """A chat template that cannot be rendered, or that refuses the messages."""


class Renderer:
    """A process for one template. It starts at once, and can be given the template while it does."""

    def __init__(self) -> None:
        """Raises TemplateError when no process can be started."""
        try:
            process = subprocess.Popen(
                # -P: the folder of the program holds modules that it must not import.
                [sys.executable, "-P", str(_PROGRAM), str(_MAX_MEMORY)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        except OSError as error:
            raise TemplateError(
                f"the chat template cannot be rendered: {sys.executable} does not start ({error.strerror})"
            ) from error
        weakref.finalize(self, _end, process)
        self.process = process
        self.ended = False
        """Whether it was late or crashed, so that there has to be another one."""
        self._ready = False

    def render(self, template: Mapping[str, Any], request: bytes) -> dict[str, Any]:
        """The response to a request: its `text`, or an `error`. `template` is the same each time."""
        if not self._ready:
            description = json.dumps(template).encode() + b"\n"
            if "ready" not in self._ask(description, _MAX_STARTING_SECONDS):
                raise TemplateError(f"the chat template cannot be rendered: {sys.executable} lacks jinja2")
            self._ready = True
        return self._ask(request, _MAX_SECONDS)

    def _ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        """The response to a line. Ends the process when it is late, or the request is interrupted."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        started = time.monotonic()
        late = threading.Timer(seconds, process.kill)
        late.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline(_MAX_RESPONSE)
            response: dict[str, Any] = json.loads(line)
        except (OSError, ValueError):
            overdue = time.monotonic() - started >= seconds
            self._end()
            reason = f"it ran for more than {seconds:g} s" if overdue else "its process crashed"
            return {"error": reason}
        except BaseException:
            self._end()
            raise
        finally:
            late.cancel()
        return response

    def _end(self) -> None:
        self.ended = True
        _end(self.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # a request that nobody read
            if pipe is not None:
                pipe.close()
    process.wait()
