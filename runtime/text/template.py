"""The chat template of a model, rendered in a sandbox: it comes from the model file, so nobody vouches for it.

A sandbox of jinja2 keeps a template away from Python, but lets it loop for ever or ask for a string of a terabyte. So
it runs in a process of its own, with limits of memory and time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateError

from trigraph.models.errors import TrigraphError

Message = Mapping[str, Any]

_PROGRAM = Path(__file__).with_name("template_process.py")
_MAX_SOURCE = 1 << 20  # characters
_MAX_SECONDS = 5.0
_MAX_MEMORY = 512 << 20  # bytes of the process
_MAX_ANSWER = 64 << 20  # bytes
_MAX_STARTING_SECONDS = 60.0
_REMEDY = "use --raw to complete plain text"


class ChatTemplate:
    """Turns messages into the text that a model was trained to continue."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: texts of tokens that templates name (`eos_token`). Raises TrigraphError on bad syntax."""
        if len(source) > _MAX_SOURCE:
            raise TrigraphError(
                f"the chat template has {len(source)} characters, more than the limit of {_MAX_SOURCE}; {_REMEDY}"
            )
        try:
            # Only parsed: a compiler would already compute constant expressions.
            Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
        except (TemplateError, RecursionError) as error:
            raise TrigraphError(f"the chat template has an error ({error}); {_REMEDY}") from error
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # threads that share the process ask one after the other

    def render(self, messages: SequenceOf[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as text; with the generation prompt, the assistant speaks next.

        Raises TrigraphError when the template fails, refuses the messages, or exceeds limits of time and size.
        """
        variables = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        request = {"source": self._source, "special_tokens": self._special_tokens, "variables": variables}
        with self._lock:
            if self._process is None:
                self._process = self._start()
            answer = self._ask(self._process, json.dumps(request).encode() + b"\n", _MAX_SECONDS)
        if "text" not in answer:
            raise TrigraphError(f"the chat template failed ({answer.get('error')}); {_REMEDY}")
        return str(answer["text"])

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            process = subprocess.Popen(
                # -P: the folder of the program holds modules that are not for it.
                [sys.executable, "-P", str(_PROGRAM), str(_MAX_MEMORY)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us
            )
        except OSError as error:
            raise TrigraphError(
                f"the chat template cannot be rendered: {sys.executable} does not start ({error.strerror}); {_REMEDY}"
            ) from error
        weakref.finalize(self, _end, process)
        if "ready" not in self._ask(process, b"", _MAX_STARTING_SECONDS):
            raise TrigraphError(f"the chat template cannot be rendered: {sys.executable} lacks jinja2; {_REMEDY}")
        return process

    def _ask(self, process: subprocess.Popen[bytes], request: bytes, seconds: float) -> dict[str, Any]:
        """The answer; a process that gives none in time, or is left in between, is ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(seconds, process.kill)
        late.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline(_MAX_ANSWER)
            answer: dict[str, Any] = json.loads(line)
        except (OSError, ValueError):
            self._process = None
            timely = late.is_alive()
            _end(process)
            reason = "its process crashed" if timely else f"it runs for more than {seconds:g} s"
            return {"error": reason}
        except BaseException:
            self._process = None
            _end(process)
            raise
        finally:
            late.cancel()
        return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # a request that nobody read
            if pipe is not None:
                pipe.close()
    process.wait()
