"""A server in a thread, and a model that says what a test has written."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from support.fakes.engine import END, VOCAB, engine_of
from support.fakes.model import History
from trigraph.runtime import Engine
from trigraph.runtime.server.app import App, ServedModel
from trigraph.runtime.server.serving import Server, bind
from trigraph.runtime.server.settings import Settings

# Tools, thoughts and calls in the manner of Qwen's: the XML family.
TEMPLATE = """\
{%- if tools %}{{- "<|tools|>" }}{% for t in tools %}{{- t | tojson }}{% endfor %}{{- eos_token }}{% endif %}
{%- for m in messages %}
    {{- "<|" + m.role + "|>" }}
    {%- if m.reasoning_content %}{{- "<think>\\n" + m.reasoning_content + "\\n</think>\\n\\n" }}{% endif %}
    {{- m.content or "" }}
    {%- for call in m.tool_calls or [] %}
        {{- "<tool_call>\\n<function=" + call.function.name + ">" + (call.function.arguments | tojson) }}
    {%- endfor %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|assistant|>" }}
    {%- if enable_thinking is not defined or enable_thinking %}{{- "<think>\\n" }}{% endif %}
{%- endif %}"""
PLAIN_TEMPLATE = TEMPLATE.replace("is not defined or enable_thinking", "is defined and enable_thinking")


def replying(reply: str, *, template: str = TEMPLATE, context: int = 4096, sequences: int = 4) -> Engine:
    """An engine that says `reply` to every prompt that ends with the assistant's turn."""
    said = reply.encode()

    def logits(history: History) -> np.ndarray:
        text = bytes(min(token, 255) for token in history)
        begun = max(text.rfind(mark) + len(mark) for mark in (b"<|assistant|>", b"<|assistant|>\xff\n"))
        place = len(text) - begun
        row = np.zeros(VOCAB, np.float32)
        row[said[place] if 0 <= place < len(said) else END] = 1
        return row

    return engine_of(logits, context=context, sequences=sequences, template=template)[0]


@contextmanager
def serving(engine: Any, settings: Settings | None = None) -> Iterator[str]:
    """Serves the engine, or several, while the block runs; gives the server's address."""
    settings = settings or Settings(port=0)
    listener = bind(settings)
    port = listener.getsockname()[1]
    server = Server(engine if isinstance(engine, App) else App.of(ServedModel(engine, settings)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 200
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def served_by_command(model: Path, *arguments: str) -> Iterator[str]:
    """The address of `trigraph serve` while the block runs."""
    command = [sys.executable, "-m", "trigraph.runtime", "serve", str(model), "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r" at (http://\S+);", line):
                break
        else:
            raise SystemExit("the server does not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)
