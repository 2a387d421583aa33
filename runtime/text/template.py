"""The chat template of a model, rendered in a sandbox: it comes with the model file and is not trusted.

The sandbox of jinja2 keeps a template away from Python, but lets it loop forever or build a string of a terabyte. So it
runs in its own process, with limits on memory and time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from pathlib import Path
from typing import Any

from trigraph.models.errors import TrigraphError
from trigraph.runtime.text.control_names import ControlNames
from trigraph.runtime.text.history import Message as Message
from trigraph.runtime.text.history import as_template_reads
from trigraph.runtime.text.reply_parser import ReplyFormat, ReplyParser

_PROGRAM = Path(__file__).with_name("template_process.py")
_MAX_SECONDS = 5.0
_MAX_MEMORY = 512 << 20  # bytes of the process
_MAX_RESPONSE = 64 << 20  # bytes
_MAX_STARTING_SECONDS = 60.0
_VARIABLES = {"messages", "tools", "documents", "add_generation_prompt"}
_REMEDY = "use --raw to complete plain text"


class ChatTemplate:
    """Turns messages into the prompt that a model was trained on.

    What is wrong with a template is known when it renders: a model may be used without it.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], control_names: ControlNames | None = None
    ) -> None:
        """`special_tokens`: texts of tokens by template variable (`eos_token`).

        `control_names` are marked as text in messages and tools: control tokens are the template's alone.
        """
        self.reply_format = ReplyFormat.of_template(source)
        self._source = source
        self._control_names = control_names or ControlNames(())
        self._special_tokens = dict(special_tokens)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # one request at a time, from whatever thread

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
        `enable_thinking`. Raises TrigraphError when the template is malformed or fails, refuses the messages, or
        exceeds a limit on time or size.
        """
        if taken := _VARIABLES & (variables or {}).keys():
            raise TrigraphError(f"{min(taken)} is no variable of chat templates to set; leave it out")
        request = {
            **(variables or {}),
            "messages": self._control_names.as_text(as_template_reads(messages, self._source)),
            "tools": self._control_names.as_text(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            line = json.dumps(request).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise TrigraphError(f"what the chat template is to render cannot be written as JSON ({error})") from error
        with self._lock:
            if self._process is None:
                self._process = self._start()
            response = self._ask(self._process, line, _MAX_SECONDS)
        if "text" not in response:
            raise TrigraphError(f"the chat template failed ({response.get('error')}); {_REMEDY}")
        return str(response["text"])

    def with_source(self, source: str) -> ChatTemplate:
        """Another template for the same vocabulary."""
        return ChatTemplate(source, self._special_tokens, self._control_names)

    def parser(self, prompt: str, tools: Iterable[Mapping[str, Any]] = ()) -> ReplyParser:
        """Takes the reply to a rendered prompt apart."""
        return ReplyParser(self.reply_format, tools, thinking=self.reply_format.thinks(prompt))

    def _start(self) -> subprocess.Popen[bytes]:
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
            raise TrigraphError(
                f"the chat template cannot be rendered: {sys.executable} does not start ({error.strerror}); {_REMEDY}"
            ) from error
        weakref.finalize(self, _end, process)
        template = {"source": self._source, "special_tokens": self._special_tokens}
        if "ready" not in self._ask(process, json.dumps(template).encode() + b"\n", _MAX_STARTING_SECONDS):
            raise TrigraphError(f"the chat template cannot be rendered: {sys.executable} lacks jinja2; {_REMEDY}")
        return process

    def _ask(self, process: subprocess.Popen[bytes], request: bytes, seconds: float) -> dict[str, Any]:
        """The response to a request. Kills a process that is late, or whose request is interrupted."""
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
            self._process = None
            overdue = time.monotonic() - started >= seconds
            _end(process)
            reason = f"it ran for more than {seconds:g} s" if overdue else "its process crashed"
            return {"error": reason}
        except BaseException:
            self._process = None
            _end(process)
            raise
        finally:
            late.cancel()
        return response


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # a request that nobody read
            if pipe is not None:
                pipe.close()
    process.wait()
