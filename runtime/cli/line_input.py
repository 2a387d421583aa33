"""Lines that the user types: edited, kept for the next chat, several of them as one message."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType

from trigraph.runtime.cli.console import say

_MOST_LINES = 1000
_MORE = "... "


class LineInput:
    """Asks for messages. What was typed is remembered across chats, where the platform can edit lines.

    A line that ends with a backslash goes on in the next one; lines that are pasted together are one message.
    """

    def __init__(self) -> None:
        self._readline = _readline() if sys.stdin is not None and sys.stdin.isatty() else None
        self._history = _history_file()

    def __enter__(self) -> LineInput:
        if self._readline is not None:
            self._readline.parse_and_bind("set enable-bracketed-paste on")
            with suppress(OSError):
                self._readline.read_history_file(self._history)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._readline is not None:
            self._readline.set_history_length(_MOST_LINES)
            with suppress(OSError):
                self._history.parent.mkdir(parents=True, exist_ok=True)
                self._history.touch(mode=0o600)
                self._readline.write_history_file(self._history)

    def ask(self, prompt: str) -> str | None:
        """The next message; None when the user quits. Ctrl-C drops what was typed."""
        lines: list[str] = []
        while True:
            try:
                line = input(_MORE if lines else prompt).rstrip()
            except EOFError:
                say("")
                return "\n".join(lines) if lines else None
            except KeyboardInterrupt:
                say("\n/exit or Ctrl-D quits")
                lines = []
                continue
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline


def _history_file() -> Path:
    """Where the system keeps what a program remembers; a file that cannot be there is left out."""
    if home := os.environ.get("XDG_STATE_HOME"):
        return Path(home) / "trigraph" / "history"
    try:
        return Path.home() / ".local" / "state" / "trigraph" / "history"
    except RuntimeError:
        return Path(os.devnull)
